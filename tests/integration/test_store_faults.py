"""What only a real server can do to the store: lose functions, data or memory, or hold messages that are not penstock's."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from penstock.broker.contract import JobIndex
from penstock.broker.records import Settled, SubmitStatus
from penstock.broker.store.sync import RedisStore
from penstock.embedded.server import EmbeddedServer
from penstock.errors import StoreUnavailable
from penstock.extensions.webhooks.contract import EventSettled
from penstock.extensions.webhooks.webhook import Webhook
from penstock.job import JobState, Payload
from tests.contract.dumps import RedisDump
from tests.contract.hooked import HOOK, Deliverer, report_progress
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import ModelQueue


@pytest.fixture
def client(fresh_redis: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(fresh_redis) as client:
        yield client


@pytest.fixture
def queue(fresh_redis: str, client: redis.Redis) -> Iterator[ModelQueue]:
    model = f"m{uuid.uuid4().hex[:12]}"
    store = RedisStore(fresh_redis)
    yield ModelQueue(store, model, RedisDump(client, model).dump)
    store.close()


def key(queue: ModelQueue, name: str) -> str:
    return f"ps:{{{queue.name}}}:{name}"


def celery_queue(queue: ModelQueue) -> str:
    return f"penstock.{{{queue.name}}}"


# --- repair --------------------------------------------------------------------------------------------------------------


def test_an_owners_jobs_from_before_its_lists_are_listed_after_a_look(queue: ModelQueue, client: redis.Redis) -> None:
    """A store that an earlier version has filled has no lists of owners."""
    failed, done = queue.leased(owner="ann"), queue.leased(owner="ann")
    queue.fail(failed)
    queue.finish(done)
    waiting = queue.submit(owner="ann")
    client.delete(key(queue, "index:ann"), key(queue, "inbox:ann"))
    assert queue.store.newest(queue.name, owner="ann") == []
    queue.store.reconcile(queue.name)
    assert queue.store.newest(queue.name, owner="ann") == [waiting, done.id, failed.id]
    assert queue.store.newest(queue.name, JobIndex.INBOX, owner="ann") == [failed.id]
    assert queue.store.reconcile(queue.name).orphans == 0


def test_a_queued_job_that_no_index_lists_is_found_again(queue: ModelQueue, client: redis.Redis) -> None:
    job = queue.submit()
    client.delete(key(queue, "ready:1"), celery_queue(queue))
    assert queue.claim().jobs == ()
    assert queue.store.reconcile(queue.name).orphans == 1
    check_invariants(queue.dump())
    assert queue.take().id == job


def test_a_line_whose_turn_was_lost_gets_one_again(queue: ModelQueue, client: redis.Redis) -> None:
    job = queue.submit(owner="a")
    client.delete(key(queue, "turns:1:0"))
    repair = queue.store.reconcile(queue.name)
    assert (repair.orphans, repair.tickets) == (1, 0)
    check_invariants(queue.dump())
    assert queue.take().id == job


def test_a_leased_job_whose_lease_vanished_is_queued_again_and_its_holder_is_not_heard(
    queue: ModelQueue, client: redis.Redis
) -> None:
    job = queue.leased()
    client.delete(key(queue, "leases"))
    assert queue.store.reconcile(queue.name).orphans == 1
    check_invariants(queue.dump())
    assert queue.finish(job) is Settled.STALE
    assert queue.store.stats(queue.name).counters["repaired"] == 1


def test_a_delayed_job_that_no_index_lists_is_queued_again(queue: ModelQueue, client: redis.Redis) -> None:
    job = queue.leased()
    queue.retry(job, delay_s=60.0)
    client.delete(key(queue, "delayed"))
    assert queue.store.reconcile(queue.name).orphans == 1
    check_invariants(queue.dump())


def test_a_job_with_a_delay_that_no_index_lists_is_put_aside_again(queue: ModelQueue, client: redis.Redis) -> None:
    job = queue.submit(delay_s=60.0)
    client.delete(key(queue, "delayed"))
    assert queue.store.reconcile(queue.name).orphans == 1
    check_invariants(queue.dump())
    assert queue.state(job) is JobState.DELAYED
    due = client.zscore(key(queue, "delayed"), job.serial)
    assert isinstance(due, float)
    assert due / 1000 == queue.read(job).not_before


def test_tags_that_no_list_has_are_listed_again(queue: ModelQueue, client: redis.Redis) -> None:
    job = queue.submit(owner="a", tags=("x", "y"))
    client.delete(key(queue, "tagged"), key(queue, "tagged:a"))
    assert queue.store.reconcile(queue.name).orphans == 1
    check_invariants(queue.dump())
    for owner in ("", "a"):
        assert queue.store.newest(queue.name, JobIndex.TAGGED, owner=owner, tag="y") == [job]
    assert queue.store.reconcile(queue.name).orphans == 0


def test_tickets_that_were_purged_are_replaced(queue: ModelQueue, client: redis.Redis) -> None:
    """`celery purge` empties the list that shows the depth of the queue; the jobs themselves stand elsewhere."""
    jobs = [queue.submit() for _ in range(3)]
    client.delete(celery_queue(queue))
    assert queue.store.reconcile(queue.name).tickets == 3
    check_invariants(queue.dump())
    assert [job.id for job in queue.claim().jobs] == jobs


def test_a_repair_goes_page_by_page(queue: ModelQueue, client: redis.Redis) -> None:
    for _ in range(5):
        queue.submit()
    client.delete(key(queue, "ready:1"), celery_queue(queue))
    cursor, found = "0", 0
    for _ in range(3):
        repair = queue.store.reconcile(queue.name, cursor=cursor, limit=2)
        cursor, found = repair.cursor, found + repair.orphans
    assert (cursor, found) == ("0", 5)
    check_invariants(queue.dump())


# --- a server that lost something -----------------------------------------------------------------------------------------


def test_functions_that_were_flushed_are_loaded_again(queue: ModelQueue, client: redis.Redis) -> None:
    job = queue.leased()
    client.function_flush()
    assert queue.finish(job) is Settled.OK


def test_a_store_that_came_back_empty_takes_new_jobs_and_hears_no_zombie(queue: ModelQueue, client: redis.Redis) -> None:
    job = queue.leased()
    client.flushall()
    assert queue.finish(job) is Settled.STALE
    assert queue.store.extend(queue.name, "w1", lease_s=15.0, max_run_s=60.0).lost
    assert queue.store.read(job.id) is None
    queue.leased()
    check_invariants(queue.dump())


def test_tombstones_and_keys_forget_by_themselves_and_live_jobs_never(queue: ModelQueue, client: redis.Redis) -> None:
    live = queue.submit(idempotency_key="k", fingerprint="f", result_ttl_s=0.0)
    day_ms = 86_400_000
    [idem] = client.scan_iter(key(queue, "idem:*"))
    assert client.pttl(idem) == pytest.approx(2 * day_ms, abs=60_000)
    assert client.pttl(key(queue, f"job:{live.serial}")) == -1
    queue.finish(queue.take())
    queue.store.sweep(queue.name)
    assert client.pttl(key(queue, f"tomb:{live.serial}")) == pytest.approx(60_000, abs=5_000)
    left = set(client.scan_iter(key(queue, "*"))) - {key(queue, n).encode() for n in ("counters", "leases", "versions", "want")}
    assert left == {key(queue, f"tomb:{live.serial}").encode(), idem}


def test_a_server_that_is_away_is_reported_as_such(tmp_path: Path) -> None:
    queue = ModelQueue(RedisStore(f"unix://{tmp_path}/nobody.sock"), "square", lambda: pytest.fail("not asked"))
    with pytest.raises(StoreUnavailable):
        queue.submit()
    with pytest.raises(StoreUnavailable):
        queue.claim()


def test_at_the_limit_of_memory_no_job_is_admitted_and_every_accepted_one_ends(state_dir: Path) -> None:
    """Rule 6: calls that free memory or finish work may still write; a refused submit leaves nothing behind."""
    with EmbeddedServer(state_dir, fsync="everysec") as server, redis.Redis.from_url(server.url) as client:
        store = RedisStore(server.url)
        queue = ModelQueue(store, "square", RedisDump(client, "square").dump)
        done, again, dropped, waiting = (queue.leased(webhook=HOOK) for _ in range(4))
        queue.submit()
        client.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="refuses to write"):
            queue.submit()
        assert queue.finish(done) is Settled.OK
        deliverer = Deliverer(queue)
        assert deliverer.settle(deliverer.take_one()) is EventSettled.OK
        assert deliverer.outbox.send_again([done.id.serial]) == 1
        assert queue.retry(again) is Settled.OK
        assert queue.release(dropped) is Settled.OK
        assert queue.store.sweep("square", gone=["w1"]).requeued == 1
        assert len(queue.claim().jobs) == 4
        assert queue.store.cancel(waiting.id).value == "requested"
        check_invariants(queue.dump())
        client.config_set("maxmemory", "0")
        store.close()


def test_a_place_that_a_failed_call_left_behind_of_progress_does_not_touch_the_job(
    queue: ModelQueue, client: redis.Redis
) -> None:
    """Else the job, whose end is still to come, would no longer count against its owner's bound."""
    job, deliverer = queue.leased(webhook=Webhook(HOOK.url, "sp")), Deliverer(queue)
    report_progress(queue, job, 0.5, "half")
    event = deliverer.take_one()
    deliverer.settle(event)
    [stored] = queue.dump().events.values()
    client.zadd(key(queue, f"events:{stored.endpoint}"), {event.id: 0})
    client.zadd(key(queue, "endpoints"), {stored.endpoint: 0})
    assert deliverer.take() == []
    assert queue.dump().events == {event.id: replace(stored, looked_at=False)}
    check_invariants(queue.dump())


def test_one_call_may_bring_more_jobs_than_one_command_can_take(queue: ModelQueue) -> None:
    answers = queue.store.submit([queue.new() for _ in range(2_500)])
    assert {answer.status for answer in answers} == {SubmitStatus.CREATED}
    assert answers[-1].depth == 2_500
    check_invariants(queue.dump())


# --- stock Celery in the queue --------------------------------------------------------------------------------------------


def test_a_stock_message_is_handed_to_one_worker_until_it_is_stored_as_a_job(queue: ModelQueue, client: redis.Redis) -> None:
    client.lpush(celery_queue(queue), b"a message of stock Celery")
    assert queue.claim("w1").messages == (b"a message of stock Celery",)
    assert queue.claim("w2").messages == ()
    queue.submit(message=b"a message of stock Celery")
    assert client.zcard(key(queue, "foreign")) == 0
    check_invariants(queue.dump())


def test_a_stock_message_among_tickets_is_handed_out_and_no_ticket_is_lost(queue: ModelQueue, client: redis.Redis) -> None:
    first = queue.submit()
    client.lpush(celery_queue(queue), b"a message of stock Celery")
    second = queue.submit()
    claim = queue.claim("w1")
    assert [job.id for job in claim.jobs] == [first, second]
    assert (*claim.messages, *queue.claim("w2").messages) == (b"a message of stock Celery",)
    check_invariants(queue.dump())


def test_a_stock_client_can_read_the_result(queue: ModelQueue, client: redis.Redis) -> None:
    queue.finish(queue.leased(celery_id="task-1"), output=Payload("application/json", b'{"square": 49}'))
    meta = json.loads(client.get("celery-task-meta-task-1") or b"")
    assert (meta["status"], meta["task_id"], meta["result"]) == ("SUCCESS", "task-1", {"square": 49})


@pytest.mark.parametrize("output", [Payload("application/json", blob="out/1"), Payload("image/png", b"\x89PNG")])
def test_a_result_that_is_no_json_at_hand_is_noted_for_a_worker_to_answer(
    queue: ModelQueue, client: redis.Redis, output: Payload
) -> None:
    job = queue.leased(celery_id="task-3")
    assert json.loads(client.get("celery-task-meta-task-3") or b"")["status"] == "STARTED"
    queue.finish(job, output=output)
    assert client.zscore("ps:{*}:answers", str(job.id)) is not None
    assert json.loads(client.get("celery-task-meta-task-3") or b"")["status"] == "STARTED"


def test_a_stock_client_sees_why_its_job_failed(queue: ModelQueue, client: redis.Redis) -> None:
    job = queue.leased(celery_id="task-2")
    queue.fail(job)
    meta = json.loads(client.get("celery-task-meta-task-2") or b"")
    assert (meta["status"], meta["result"]["exc_message"]) == ("FAILURE", ["bad_input: not a number"])
    assert queue.state(job.id) is JobState.FAILED
