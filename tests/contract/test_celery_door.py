"""The door of Celery's clients on a real store: what a round of it costs, and what it leaves behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.records import ClaimRequest, Ending, NewJob
from penstock.broker.store.sync import RedisStore
from penstock.extensions.celery_clients.ops import Sent, answer, due_answers, followed_by, word_of
from penstock.extensions.celery_clients.worker.clients import CeleryClients
from penstock.extensions.celery_clients.worker.follow_ups import FollowUps, Signature
from penstock.job import JobId, JobState, new_job_id
from tests.contract.model_queue import OUTPUT, STAMP

DRAWN_AT_ONCE = 64


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    made = RedisStore(redis_url)
    yield made
    made.close()


@pytest.fixture
def door(store: RedisStore, tmp_path: Path) -> CeleryClients:
    return CeleryClients(store, LocalBlobs(tmp_path), lambda: ["known"], revoked=())


def message(id: str, task: str) -> bytes:
    """Return what kombu puts into a queue."""
    parts = {"body": "[[1], {}, {}]", "headers": {"id": id, "task": task}, "content-type": "application/json"}
    return json.dumps(parts).encode()


def ended_job(store: RedisStore, callback: dict[str, Any]) -> JobId:
    """Run a job whose task is followed by this callback, and return it once it has succeeded."""
    follows = FollowUps("t1", "t1", callbacks=[msgspec.convert(callback, Signature)])
    job = NewJob(new_job_id("known"), "1", OUTPUT, words=word_of("t1" + followed_by((), msgspec.json.encode(follows).decode())))
    store.submit([job])
    [claimed] = store.claim(ClaimRequest("known", "1", "w1", "n", 8)).jobs
    store.finish([Ending(job.id, claimed.token, JobState.SUCCEEDED, OUTPUT)], worker="w1", stamp=STAMP)
    return job.id


def arrived(client: Any, queue: str) -> list[Any]:
    """Return the arguments of each task in a queue."""
    bodies = [base64.b64decode(json.loads(raw)["body"]) for raw in client.lrange(queue, 0, -1)]
    return [json.loads(body)[0] for body in bodies]


def test_what_follows_a_job_is_sent_once_though_the_worker_that_was_to_send_it_is_killed(
    client: Any, store: RedisStore, door: CeleryClients
) -> None:
    job = ended_job(store, {"task": "shop.done", "args": [], "options": {"queue": "orders"}})
    assert store.run(due_answers(8)) == [job], "and this worker is killed here"
    door.answer_due()
    assert arrived(client, "orders") == [], "handed out once"
    client.zadd("ps:{*}:answers", {str(job): 0})
    door.answer_due()
    assert arrived(client, "orders") == [[json.loads(OUTPUT.data)]]
    assert json.loads(client.get("celery-task-meta-t1"))["status"] == "SUCCESS"
    # A worker that was only slow sends it no second time.
    assert not store.run(answer(job, [Sent("queue", "orders", b"again")]))
    assert client.llen("orders") == 1


def test_what_cannot_be_sent_is_kept_and_sent_later_while_others_are_served(
    client: Any, store: RedisStore, door: CeleryClients
) -> None:
    client.set("taken", "no list")
    stuck = ended_job(store, {"task": "shop.done", "options": {"queue": "taken"}})
    ended_job(store, {"task": "shop.done", "options": {"queue": "free"}})
    door.answer_due()
    assert (client.llen("free"), client.zscore("ps:{*}:answers", str(stuck)) > 0) == (1, True)
    client.delete("taken")
    client.zadd("ps:{*}:answers", {str(stuck): 0})
    door.answer_due()
    assert client.llen("taken") == 1
    assert not client.exists("ps:{*}:answers")


def test_many_answers_that_are_due_are_not_held_up_by_a_quiet_door(store: RedisStore, door: CeleryClients) -> None:
    """Regression: eight of them were answered in each quarter of a second."""
    for _ in range(9):
        ended_job(store, {"task": "shop.done", "options": {"queue": "many"}})
    door.run_once(0.0)
    assert door.listen_s < 0.01
    door.run_once(0.0)
    assert door.listen_s == 0.25


def reads(client: Any) -> int:
    """How often Redis read from a connection: commands that were sent together are mostly one read."""
    return int(client.info("stats")["total_reads_processed"])


def test_a_round_full_of_tasks_of_an_unknown_model_is_answered_in_few_round_trips(client: Any, door: CeleryClients) -> None:
    """Regression: each of them cost a round trip, while those behind it waited."""
    door.run_once(0.0)
    client.lpush("penstock", *(message(f"no-{n}", "penstock.nosuch") for n in range(DRAWN_AT_ONCE)))
    before = reads(client)
    door.run_once(0.0)
    assert reads(client) - before < DRAWN_AT_ONCE / 2
    answers = client.mget([f"celery-task-meta-no-{n}" for n in range(DRAWN_AT_ONCE)])
    assert all(json.loads(found)["result"]["exc_type"] == "BadRequest" for found in answers)
    assert not client.zcard("ps:{*}:foreign")
