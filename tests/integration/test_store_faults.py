"""What only a real server can do to the store: lose functions, data or memory, or hold messages that are not ours."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from penstock.broker.records import Settled, SubmitStatus
from penstock.broker.server.embedded import EmbeddedServer
from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.job import JobState, Payload
from tests.contract.desk import Desk
from tests.contract.dumps import RedisDump
from tests.contract.invariants import check_invariants


@pytest.fixture
def client(fresh_redis: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(fresh_redis) as client:
        yield client


@pytest.fixture
def desk(fresh_redis: str, client: redis.Redis) -> Iterator[Desk]:
    model = f"m{uuid.uuid4().hex[:12]}"
    store = RedisStore(fresh_redis)
    yield Desk(store, model, RedisDump(client, model).dump)
    store.close()


def key(desk: Desk, name: str) -> str:
    return f"ps:{{{desk.model}}}:{name}"


def queue(desk: Desk) -> str:
    return f"penstock.{{{desk.model}}}"


# --- repair --------------------------------------------------------------------------------------------------------------


def test_a_queued_job_that_no_index_lists_is_found_again(desk: Desk, client: redis.Redis) -> None:
    job = desk.submit()
    client.delete(key(desk, "ready:1"), queue(desk))
    assert desk.claim().jobs == ()
    assert desk.store.reconcile(desk.model).orphans == 1
    check_invariants(desk.dump())
    assert desk.take().id == job


def test_a_line_whose_turn_was_lost_gets_one_again(desk: Desk, client: redis.Redis) -> None:
    job = desk.submit(owner="a")
    client.delete(key(desk, "turns:1:0"))
    repair = desk.store.reconcile(desk.model)
    assert (repair.orphans, repair.tickets) == (1, 0)
    check_invariants(desk.dump())
    assert desk.take().id == job


def test_a_leased_job_whose_lease_vanished_is_queued_again_and_its_holder_is_not_heard(desk: Desk, client: redis.Redis) -> None:
    job = desk.leased()
    client.delete(key(desk, "leases"))
    assert desk.store.reconcile(desk.model).orphans == 1
    check_invariants(desk.dump())
    assert desk.finish(job) is Settled.STALE
    assert desk.store.stats(desk.model).counters["repaired"] == 1


def test_a_delayed_job_that_no_index_lists_is_queued_again(desk: Desk, client: redis.Redis) -> None:
    job = desk.leased()
    desk.retry(job, delay_s=60.0)
    client.delete(key(desk, "delayed"))
    assert desk.store.reconcile(desk.model).orphans == 1
    check_invariants(desk.dump())


def test_tickets_that_were_purged_are_replaced(desk: Desk, client: redis.Redis) -> None:
    """`celery purge` empties the list that shows the depth; the jobs themselves stand elsewhere."""
    jobs = [desk.submit() for _ in range(3)]
    client.delete(queue(desk))
    assert desk.store.reconcile(desk.model).tickets == 3
    check_invariants(desk.dump())
    assert [job.id for job in desk.claim().jobs] == jobs


def test_a_repair_goes_page_by_page(desk: Desk, client: redis.Redis) -> None:
    for _ in range(5):
        desk.submit()
    client.delete(key(desk, "ready:1"), queue(desk))
    cursor, found = "0", 0
    for _ in range(3):
        repair = desk.store.reconcile(desk.model, cursor=cursor, limit=2)
        cursor, found = repair.cursor, found + repair.orphans
    assert (cursor, found) == ("0", 5)
    check_invariants(desk.dump())


# --- a server that lost something -----------------------------------------------------------------------------------------


def test_functions_that_were_flushed_are_loaded_again(desk: Desk, client: redis.Redis) -> None:
    job = desk.leased()
    client.function_flush()
    assert desk.finish(job) is Settled.OK


def test_a_store_that_came_back_empty_takes_new_jobs_and_hears_no_zombie(desk: Desk, client: redis.Redis) -> None:
    job = desk.leased()
    client.flushall()
    assert desk.finish(job) is Settled.STALE
    assert desk.store.extend(desk.model, "w1", lease_s=15.0, max_run_s=60.0).lost
    assert desk.store.read(job.id) is None
    desk.leased()
    check_invariants(desk.dump())


def test_tombstones_and_keys_forget_by_themselves_and_live_jobs_never(desk: Desk, client: redis.Redis) -> None:
    live = desk.submit(idempotency_key="k", fingerprint="f", result_ttl_s=0.0)
    day_ms = 86_400_000
    [idem] = client.scan_iter(key(desk, "idem:*"))
    assert client.pttl(idem) == pytest.approx(2 * day_ms, abs=60_000)
    assert client.pttl(key(desk, f"job:{live.serial}")) == -1
    desk.finish(desk.take())
    desk.store.sweep(desk.model)
    assert client.pttl(key(desk, f"tomb:{live.serial}")) == pytest.approx(60_000, abs=5_000)
    left = set(client.scan_iter(key(desk, "*"))) - {key(desk, n).encode() for n in ("counters", "leases", "versions", "want")}
    assert left == {key(desk, f"tomb:{live.serial}").encode(), idem}


def test_a_server_that_is_away_is_reported_as_such(tmp_path: Path) -> None:
    desk = Desk(RedisStore(f"unix://{tmp_path}/nobody.sock"), "square", lambda: pytest.fail("not asked"))
    with pytest.raises(StoreUnavailable):
        desk.submit()
    with pytest.raises(StoreUnavailable):
        desk.claim()


def test_at_the_limit_of_memory_no_job_is_admitted_and_every_accepted_one_still_ends(state_dir: Path) -> None:
    """Rule 6: what frees memory or finishes work may still write; a refused submit leaves nothing behind."""
    with EmbeddedServer(state_dir, fsync="everysec") as server, redis.Redis.from_url(server.url) as client:
        store = RedisStore(server.url)
        desk = Desk(store, "square", RedisDump(client, "square").dump)
        done, again, dropped, waiting = (desk.leased() for _ in range(4))
        desk.submit()
        client.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="refuses to write"):
            desk.submit()
        assert desk.finish(done) is Settled.OK
        assert desk.retry(again) is Settled.OK
        assert desk.release(dropped) is Settled.OK
        assert desk.store.sweep("square", gone=["w1"]).requeued == 1
        assert len(desk.claim().jobs) == 4
        assert desk.store.cancel(waiting.id).value == "requested"
        check_invariants(desk.dump())
        client.config_set("maxmemory", "0")
        store.close()


def test_one_call_may_bring_more_jobs_than_one_command_can_take(desk: Desk) -> None:
    answers = desk.store.submit([desk.new() for _ in range(2_500)])
    assert {answer.status for answer in answers} == {SubmitStatus.CREATED}
    assert answers[-1].depth == 2_500
    check_invariants(desk.dump())


# --- stock Celery in the queue --------------------------------------------------------------------------------------------


def test_a_stock_message_is_handed_to_one_worker_until_it_is_stored_as_a_job(desk: Desk, client: redis.Redis) -> None:
    client.lpush(queue(desk), b"a message of stock Celery")
    assert desk.claim("w1").foreign == (b"a message of stock Celery",)
    assert desk.claim("w2").foreign == ()
    desk.submit(foreign=b"a message of stock Celery")
    assert client.hlen(key(desk, "foreign")) == 0
    check_invariants(desk.dump())


def test_a_stock_message_among_tickets_is_handed_out_and_no_ticket_is_lost(desk: Desk, client: redis.Redis) -> None:
    first = desk.submit()
    client.lpush(queue(desk), b"a message of stock Celery")
    second = desk.submit()
    claim = desk.claim("w1")
    assert [job.id for job in claim.jobs] == [first, second]
    assert (*claim.foreign, *desk.claim("w2").foreign) == (b"a message of stock Celery",)
    check_invariants(desk.dump())


@pytest.mark.parametrize(
    "output",
    [
        Payload("application/json", b'{"square": 49}'),
        Payload("application/json", blob="out/1"),
        Payload("image/png", b"\x89PNG"),
    ],
    ids=["json", "json in a blob", "bytes"],
)
def test_a_stock_client_can_read_the_result(desk: Desk, client: redis.Redis, output: Payload) -> None:
    job = desk.leased(celery_id="task-1")
    desk.finish(job, output=output)
    meta = json.loads(client.get("celery-task-meta-task-1") or b"")
    assert (meta["status"], meta["task_id"]) == ("SUCCESS", "task-1")
    assert meta["result"] == (
        {"square": 49} if output.data[:1] == b"{" else {"job": str(job.id), "content_type": output.content_type}
    )


def test_a_stock_client_sees_why_its_job_failed(desk: Desk, client: redis.Redis) -> None:
    job = desk.leased(celery_id="task-2")
    desk.fail(job)
    meta = json.loads(client.get("celery-task-meta-task-2") or b"")
    assert (meta["status"], meta["result"]["exc_message"]) == ("FAILURE", ["bad_input: not a number"])
    assert desk.state(job.id) is JobState.FAILED
