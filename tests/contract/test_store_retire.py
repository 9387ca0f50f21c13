"""retire: a queue takes no jobs of a version that is about to be forgotten, and nothing of the version is left in the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from penstock.broker.contract import ReleaseReason
from penstock.broker.records import SubmitStatus, Unfinished
from penstock.broker.store.registry import KeptTimes
from penstock.broker.store.sync import RedisStore
from penstock.job import Call, Priority
from tests.contract.model_queue import ModelQueue
from tests.contract.test_store_hand_over import Listener
from tests.eventually import eventually

NOTHING = Unfinished(waiting=0, running=0)


def status(queue: ModelQueue, **changes: Any) -> SubmitStatus:
    return queue.put(queue.new(**changes)).status


def test_a_retired_version_gets_no_jobs_and_others_do(queue: ModelQueue) -> None:
    # Regression: a submitter that had read the registry before left a job there, for which nobody had the code.
    assert queue.store.retire(queue.name, "1") == NOTHING
    new = queue.new()
    assert queue.put(new).status is SubmitStatus.RETIRED
    assert queue.store.read(new.id) is None
    assert status(queue, version="2") is SubmitStatus.CREATED
    assert queue.store.stats(queue.name).accepted == 1


@pytest.mark.parametrize("changes", [{"delay_s": 60.0}, {"owner": "alice"}, {"call": Call.SHARD}, {"idempotency_key": "k"}])
def test_no_kind_of_job_gets_into_a_retired_version(queue: ModelQueue, changes: dict[str, Any]) -> None:
    queue.store.retire(queue.name, "1")
    assert status(queue, **changes) is SubmitStatus.RETIRED


@pytest.mark.parametrize("changes", [{}, {"delay_s": 60.0}, {"owner": "alice"}, {"call": Call.SHARD}])
def test_a_version_with_a_waiting_job_is_not_retired(queue: ModelQueue, changes: dict[str, Any]) -> None:
    queue.submit(**changes)
    assert queue.store.retire(queue.name, "1") == Unfinished(waiting=1, running=0)
    assert status(queue) is SubmitStatus.CREATED
    assert queue.store.retire(queue.name, "2") == NOTHING, "the job is of another version"


def test_a_version_is_not_retired_while_a_job_may_come_back_to_its_line(queue: ModelQueue) -> None:
    job = queue.leased()
    assert queue.store.retire(queue.name, "1") == Unfinished(waiting=0, running=1)
    queue.retry(job, delay_s=60.0)
    assert queue.store.retire(queue.name, "1") == Unfinished(waiting=1, running=0)
    assert status(queue) is SubmitStatus.CREATED


def test_a_suspect_keeps_its_version_from_being_retired(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.release(job, ReleaseReason.CRASHED)
    assert queue.store.retire(queue.name, "1") == Unfinished(waiting=1, running=0)


def test_a_slot_of_a_retired_version_leaves_no_offer(queue: ModelQueue) -> None:
    queue.store.retire(queue.name, "1")
    queue.claim("w1", offer=True)
    assert not queue.store.withdraw(queue.name, "1", "w1")


def test_a_repeat_of_a_retired_versions_job_finds_it(queue: ModelQueue) -> None:
    job = queue.leased(idempotency_key="k", fingerprint="f")
    queue.finish(job)
    assert queue.store.retire(queue.name, "1") == NOTHING
    answer = queue.put(queue.new(idempotency_key="k", fingerprint="f"))
    assert (answer.status, answer.id) == (SubmitStatus.EXISTING, job.id)


def test_a_submit_repeated_after_a_lost_reply_finds_its_job_though_the_version_is_retired(queue: ModelQueue) -> None:
    new = queue.new()
    queue.put(new)
    queue.finish(queue.take())
    queue.store.retire(queue.name, "1")
    assert queue.put(new).status is SubmitStatus.EXISTING


def test_a_queue_is_retired_once_no_record_is_kept(queue: ModelQueue) -> None:
    job = queue.leased(result_ttl_s=0.0)
    assert queue.store.retire(queue.name) == Unfinished(waiting=1, running=0)
    queue.finish(job)
    assert queue.store.retire(queue.name) == Unfinished(waiting=1, running=0), "its result can still be read"
    assert queue.store.sweep(queue.name).collected == 1
    assert queue.store.retire(queue.name) == NOTHING
    assert status(queue, version="2") is SubmitStatus.RETIRED


def test_a_reopened_version_gets_jobs_again(queue: ModelQueue) -> None:
    queue.store.retire(queue.name, "1")
    [(version, since)] = queue.store.retired(queue.name).items()
    assert queue.store.reopen(queue.name, version, since)
    assert queue.store.retired(queue.name) == {}
    assert status(queue) is SubmitStatus.CREATED


def test_who_looked_before_the_last_closing_does_not_reopen_it(queue: ModelQueue) -> None:
    """Such a caller read the registry before the version was unloaded once more."""
    queue.store.retire(queue.name, "1")
    since = queue.store.retired(queue.name)["1"]

    def is_closed_anew() -> bool:
        queue.store.retire(queue.name, "1")
        return queue.store.retired(queue.name)["1"] > since

    eventually(is_closed_anew)
    assert not queue.store.reopen(queue.name, "1", since)
    assert not queue.store.reopen(queue.name, "2", since)
    assert status(queue) is SubmitStatus.RETIRED


def test_a_key_that_an_older_number_placed_is_refused_and_a_repeat_still_meets_its_first_job(queue: ModelQueue) -> None:
    first = queue.submit(idempotency_key="k", placing=0)
    queue.store.advance(queue.name, 2)
    queue.store.advance(queue.name, 1)
    assert queue.put(queue.new(idempotency_key="k", placing=0)).id == first
    assert status(queue, idempotency_key="l", placing=1) is SubmitStatus.MOVED
    assert status(queue, idempotency_key="l", placing=2) is SubmitStatus.CREATED
    assert status(queue, idempotency_key="m") is SubmitStatus.CREATED, "it can lie in no other queue"
    assert status(queue, placing=0) is SubmitStatus.CREATED, "without a key nothing is repeated"


# --- what is left: on Redis alone, because the oracle has no keys ------------------------------------------------------------


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as found:
        yield found


@pytest.fixture
def used(redis_url: str, model: str) -> Iterator[ModelQueue]:
    """Yield a queue that had jobs of an owner, suspects of both kinds and slots that wait and are killed, of version v-9."""
    store = RedisStore(redis_url)
    queue = ModelQueue(store, model, lambda: pytest.fail("not compared"))
    jobs: list[dict[str, Any]] = [{"owner": "alice"}, {}, {"owner": "bob", "priority": Priority.BULK}]
    for changes in jobs:
        queue.submit(version="v-9", result_ttl_s=0.0, **changes)
    for worker in ("lost.0", "lost.1"):
        queue.claim(worker, version="v-9")
        store.sweep(model, gone=[worker])
    while claimed := queue.claim("w9", version="v-9").jobs:
        for job in claimed:
            queue.finish(job, worker="w9")
    queue.claim("killed.0", version="v-9", offer=True)
    store.keep_learned_times(model, "v-9 | cpu |  | 1", KeptTimes({1: 0.1}, 1.0))
    store.keep_learned_times(model, "v-99 | cpu |  | 1", KeptTimes({1: 0.1}, 1.0))
    yield queue
    store.close()


def mentions(client: Any, model: str, word: str) -> set[str]:
    """Return the keys of the model without a time to live that name this word, in the key or in what it holds."""
    found = set()
    for key in client.scan_iter(f"*{{{model}}}*", count=1_000):
        kind = client.type(key)
        texts = {
            "string": lambda key: [client.get(key)],
            "hash": lambda key: [part for pair in client.hgetall(key).items() for part in pair],
            "zset": lambda key: client.zrange(key, 0, -1),
            "set": client.smembers,
            "list": lambda key: client.lrange(key, 0, -1),
        }[kind](key)
        if client.ttl(key) < 0 and any(word in text for text in (key, *texts)):
            found.add(key.partition("}:")[2])
    return found


def test_nothing_that_names_a_retired_version_is_left_in_the_store(used: ModelQueue, client: Any) -> None:
    """Regression: turns, offers of killed slots and clocks of suspects stayed for ever, of each version that was loaded."""
    left = mentions(client, used.name, "v-9")
    assert {"versions", "counters", "offers:v-9", "turns:v-9:0", "learned"} <= left
    assert used.store.sweep(used.name).collected
    assert used.store.retire(used.name, "v-9") == NOTHING
    assert mentions(client, used.name, "v-9") == {"learned"}
    assert isinstance(used.store, RedisStore)
    assert list(used.store.learned_times(used.name)) == ["v-99 | cpu |  | 1"], "that of another version"
    assert 0 < client.ttl(f"ps:{{{used.name}}}:retired") <= 86_400


def test_a_slot_that_still_asks_for_a_retired_version_leaves_nothing_there(used: ModelQueue, client: Any) -> None:
    """As one does that stood still while its version was forgotten, and is killed as soon as it goes on."""
    used.store.sweep(used.name)
    used.store.retire(used.name, "v-9")
    assert used.claim("frozen.0", version="v-9", offer=True).jobs == ()
    used.submit(version="other")
    assert used.claim("frozen.0", version="v-9", offer=True).jobs == ()
    assert mentions(client, used.name, "v-9") == {"learned"}


def test_a_message_of_celery_for_a_retired_version_is_handed_out_again(redis_url: str, model: str, client: Any) -> None:
    """Regression: whatever became of its job, only a full queue kept it; a message that is lost has no answer."""
    foreign = f"ps:{{{model}}}:foreign"
    with closing(RedisStore(redis_url)) as store:
        queue = ModelQueue(store, model, lambda: pytest.fail("not compared"))
        client.zadd(foreign, {"a message": 0})
        store.retire(model, "1")
        assert status(queue, message=b"a message") is SubmitStatus.RETIRED
        assert client.zcard(foreign) == 1
        store.reopen(model, "1", store.retired(model)["1"])
        assert status(queue, message=b"a message") is SubmitStatus.CREATED
        assert client.zcard(foreign) == 0


def killed_while_it_waited(queue: ModelQueue, *, version: str) -> None:
    """As a slot is whose worker gets SIGKILL: it has an offer in the store, and listens no more."""
    queue.claim("killed.0", version=version, offer=True)


def has_offer(queue: ModelQueue, worker: str, *, version: str) -> bool:
    return queue.store.withdraw(queue.name, version, worker)


def test_offers_of_killed_slots_are_dropped_and_those_of_slots_that_listen_stay(queue: ModelQueue) -> None:
    """Regression: with each slot that was killed while it waited, a field stayed for as long as the version was served."""
    if not isinstance(queue.store, RedisStore):
        pytest.skip("nobody listens to the oracle")
    with closing(Listener(queue, "w1")):
        queue.claim("w1", version="1", offer=True)
        killed_while_it_waited(queue, version="1")
        queue.store.reconcile(queue.name)
        assert not has_offer(queue, "killed.0", version="1")
        assert has_offer(queue, "w1", version="1")


def test_offers_are_found_where_a_queue_has_many_versions(queue: ModelQueue) -> None:
    """A sweep forgets versions without jobs there, because each costs every look at the queue."""
    if not isinstance(queue.store, RedisStore):
        pytest.skip("nobody listens to the oracle")
    for number in range(10):
        queue.store.cancel(queue.submit(version=f"v{number}"))
    killed_while_it_waited(queue, version="idle")
    queue.store.sweep(queue.name)
    queue.store.reconcile(queue.name)
    assert not has_offer(queue, "killed.0", version="idle")


def test_of_a_retired_queue_nothing_is_left_but_what_has_a_time_to_live(used: ModelQueue, client: Any) -> None:
    used.store.sweep(used.name)
    used.store.advance(used.name, 3)
    assert used.store.retire(used.name) == NOTHING
    assert mentions(client, used.name, "") == set()
