"""Messages that a claim found become jobs, or are answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from penstock.broker.records import Claim, NewJob, Submitted
from penstock.broker.store.ops import Operation
from penstock.broker.store.sync import RedisStore
from penstock.extensions.celery_clients.worker.part import read_messages
from tests.extensions.celery_clients.worker.test_messages import INFO, NOW, SPEC, message

BAD = b"no message"


class MessageStore:
    """The part of a slot's store that takes up messages; every queue but `forbidden` can be written to."""

    def __init__(self) -> None:
        self.stored: list[NewJob] = []
        self.called: list[str] = []

    def run(self, operation: Operation[Any]) -> Any:
        self.called.append(operation.function)
        return operation.args != ["forbidden"]

    def run_all(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        return [self.run(operation) for operation in operations]

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 0) -> list[Submitted]:
        self.stored += jobs
        return []


def found(*messages: bytes) -> MessageStore:
    store = MessageStore()
    claim = Claim(messages=messages, now=NOW)
    read_messages(cast("RedisStore", store), claim, "square", spec=SPEC, info=INFO)
    return store


def test_a_message_becomes_a_job_of_the_queue_that_it_lay_in() -> None:
    store = found(message())
    [job] = store.stored
    assert (job.id.queue, job.input.data, job.version) == ("square", b"4", INFO.default_version)
    assert store.called == []


def test_a_bad_message_is_answered_beside_good_ones() -> None:
    store = found(BAD, message())
    assert len(store.stored) == 1
    assert store.called == ["reject_foreign"]


def test_the_store_is_asked_whether_what_follows_can_be_sent() -> None:
    link: dict[str, Any] = {
        "task": "report",
        "args": [],
        "kwargs": {},
        "options": {"queue": "forbidden"},
        "subtask_type": None,
        "immutable": False,
    }
    assert found(message(link=[link])).called == ["may_send", "reject_foreign"]
