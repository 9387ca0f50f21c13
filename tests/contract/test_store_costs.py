"""What calls of the store cost, counted by Redis in commands: upkeep must not grow with what is not due.

On Redis alone, because the store in memory costs nothing that a deployment would notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.contract import ReleaseReason
from penstock.broker.records import ClaimRequest, Ending, Repair, SweepReport
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredModel
from penstock.broker.store.sync import RedisStore
from penstock.extensions.pipelines.spec import PipelineStage
from penstock.extensions.pipelines.worker.stage_models import StageModels
from penstock.job import JobState
from penstock.model_spec import ModelInfo, SlotInfo, WorkerInfo
from penstock.workers.fleet.announcer import OtherEntries
from penstock.workers.fleet.sweeper import Sweeper
from penstock.workers.slot.needless import NeedlessBlobs
from tests.contract.dumps import RedisDump
from tests.contract.hooked import HOOK, Deliverer, again, ended
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import OUTPUT, STAMP, ModelQueue
from tests.eventually import eventually

# What tests send to count, and the calls of functions themselves.
_NOT_COUNTED = ("info", "config", "fcall", "client", "hello")


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


@pytest.fixture
def queue(redis_url: str, client: Any, model: str) -> Iterator[ModelQueue]:
    store = RedisStore(redis_url)
    made = ModelQueue(store, model, RedisDump(client, model).dump)
    yield made
    check_invariants(made.dump())
    store.close()


def commands(client: Any, call: Callable[[], object], *, only: str = "") -> int:
    """Return how many commands Redis runs for a call, those inside of functions included."""
    client.config_resetstat()
    call()
    counts = {name.removeprefix("cmdstat_"): found["calls"] for name, found in client.info("commandstats").items()}
    return sum(n for name, n in counts.items() if name.startswith(only) and not name.startswith(_NOT_COUNTED))


def sweep(queue: ModelQueue) -> Callable[[], object]:
    return lambda: queue.store.sweep(queue.name)


def run_and_finish(queue: ModelQueue, version: str) -> None:
    job = queue.submit(version=version)
    claim = queue.store.claim(ClaimRequest(queue.name, version, "w1", version, 8))
    queue.store.finish([Ending(job, claim.jobs[0].token, JobState.SUCCEEDED, OUTPUT)], worker="w1", stamp=STAMP)


# --- what nobody asked for ----------------------------------------------------------------------------------------------------


def test_a_job_without_a_start_or_tags_pays_for_neither(queue: ModelQueue, client: Any) -> None:
    """D74: the size of the delayed set and the lists of tags concern only jobs that have them."""
    queue.store.submit([queue.new(delay_s=60.0, tags=("x",))])
    plain, asking = queue.new(), queue.new(delay_s=60.0, tags=("x",))
    assert commands(client, lambda: queue.put(plain), only="zcard") == 0
    assert commands(client, lambda: queue.put(asking), only="zcard") == 1


def test_a_job_without_a_webhook_pays_nothing_for_events(queue: ModelQueue, client: Any) -> None:
    """D90: its end writes no row but that of its collection, and tells no deliverer."""
    plain, hooked = queue.leased(), queue.leased(webhook=HOOK)
    ends = [commands(client, lambda job=job: queue.finish(job)) for job in (plain, hooked)]  # type: ignore[misc]
    another = queue.leased()
    assert commands(client, lambda: queue.finish(another), only="zadd") == 1
    assert ends[1] - ends[0] <= 4, "the number of the event, its two places, and a word to deliverers"
    assert commands(client, lambda: queue.put(queue.new()), only="zadd") + 1 == commands(
        client, lambda: queue.put(queue.new(webhook=HOOK)), only="zadd"
    )


def test_only_a_key_asks_by_which_number_of_partitions_it_was_placed(queue: ModelQueue, client: Any) -> None:
    """D142: and where nothing was closed, a submit asks for nothing more."""
    plain, keyed = queue.new(placing=0), queue.new(idempotency_key="k", placing=0)
    reads = commands(client, lambda: queue.put(plain), only="get")
    assert commands(client, lambda: queue.put(keyed), only="get") == reads + 2, "its first job, and the number"
    assert commands(client, lambda: queue.put(queue.new()), only="zrange") == 0


def test_a_closed_endpoint_costs_a_take_no_more_the_more_events_wait(queue: ModelQueue, client: Any) -> None:
    deliverer = Deliverer(queue)
    ended(queue)
    deliverer.settle(deliverer.take_one(), again(pause_s=1_000.0))
    counted = []
    for _ in range(2):
        for _ in range(50):
            ended(queue)
        counted.append(commands(client, deliverer.take))
    assert counted[0] == counted[1]


# --- a sweep with nothing due ----------------------------------------------------------------------------------------------


def test_versions_that_nothing_waits_for_are_forgotten_and_cost_a_sweep_nothing(queue: ModelQueue, client: Any) -> None:
    """Regression: each version that was ever queued cost every sweep some commands for ever: a thousand took 32 ms."""
    for number in range(100):
        run_and_finish(queue, f"v{number}")
    queue.submit(version="kept")
    queue.store.sweep(queue.name)
    assert client.smembers(f"ps:{{{queue.name}}}:versions") == {b"kept"}
    assert commands(client, sweep(queue)) < 30
    assert len(queue.claim(version="kept").jobs) == 1


def test_a_version_with_waiting_jobs_of_any_kind_is_kept(queue: ModelQueue, client: Any) -> None:
    for number in range(20):
        run_and_finish(queue, f"v{number}")
    queue.submit(version="owned", owner="alice")
    queue.shard(version="shards")
    suspect = queue.leased()
    queue.crash(suspect)
    queue.store.sweep(queue.name)
    assert client.smembers(f"ps:{{{queue.name}}}:versions") == {b"owned", b"shards", b"1"}


@pytest.mark.parametrize("delay_s", [60.0, 1e6])
def test_delayed_jobs_that_are_not_due_cost_a_sweep_nothing(queue: ModelQueue, client: Any, delay_s: float) -> None:
    """Regression: every sweep read the record of every delayed job to see its deadline: a thousand took 17 ms."""
    queue.retry(queue.leased(), delay_s=delay_s)
    with_one = commands(client, sweep(queue))
    for _ in range(100):
        queue.retry(queue.leased(), delay_s=delay_s)
    assert commands(client, sweep(queue)) == with_one


@pytest.mark.parametrize(("waited_ms", "least_ms"), [(0, 250), (8_000, 2_000), (3_600_000, 4_000)])
def test_a_job_whose_input_is_read_is_looked_for_the_less_often_the_longer_it_waits(
    queue: ModelQueue, client: Any, waited_ms: int, least_ms: int
) -> None:
    """D150: thousands of jobs whose hosts do not answer would else come again several times a second."""
    job, key = queue.leased(deadline_s=9_000.0), f"ps:{{{queue.name}}}:"
    client.hincrby(f"{key}job:{job.id.serial}", "created", -waited_ms)
    before = now_ms(client)
    queue.release(job, ReleaseReason.READING)
    delay_ms, took_ms = client.zscore(f"{key}delayed", job.id.serial) - before, now_ms(client) - before
    # A call that takes long adds itself, and a quarter of itself to what the job has waited.
    assert least_ms <= delay_ms <= least_ms + 2 * took_ms + 100


def now_ms(client: Any) -> int:
    seconds, microseconds = client.time()
    return int(seconds * 1_000 + microseconds // 1_000)


def test_suspects_that_are_not_late_cost_a_sweep_nothing(queue: ModelQueue, client: Any) -> None:
    for suspect in [queue.leased() for _ in range(100)]:
        queue.crash(suspect)
    queue.store.sweep(queue.name)
    assert client.zcard(f"ps:{{{queue.name}}}:solo:1") == 100
    assert commands(client, sweep(queue)) < 40


def test_of_many_suspects_the_late_ones_end_and_the_others_do_not(queue: ModelQueue) -> None:
    suspects = [queue.leased(deadline_s=deadline_s) for deadline_s in (60.0, 0.3, 60.0, 0.6)]
    for suspect in suspects:
        queue.crash(suspect)
    for late in (suspects[1], suspects[3]):
        eventually(lambda late=late: queue.store.sweep(queue.name).expired)  # type: ignore[misc]
        assert queue.state(late.id) is JobState.EXPIRED
    assert [queue.state(suspects[place].id) for place in (0, 2)] == [JobState.QUEUED] * 2


# --- presence --------------------------------------------------------------------------------------------------------------

LOOK = {"pace_s": 30.0, "again_s": 0.0}


def lease_holders(queue: ModelQueue, count: int) -> list[str]:
    names = [f"{queue.name}-{number:03d}" for number in range(count)]
    for name in names:
        queue.leased(name, lease_s=600.0)
    return names


@contextmanager
def subscribed(client: Any, name: str, workers: Sequence[str]) -> Iterator[None]:
    channels = [f"ps:{{{name}}}:worker:{worker}" for worker in workers]
    with ExitStack() as opened:
        pubsub = opened.enter_context(client.pubsub())
        pubsub.ssubscribe(*channels)
        for _ in workers:
            assert pubsub.get_message(timeout=10.0)
        yield
    # The store notices only after a moment that a connection was closed.
    eventually(lambda: not any(count for _, count in client.pubsub_shardnumsub(*channels)))


def test_five_hundred_workers_are_looked_for_once_and_not_by_each_of_them(queue: ModelQueue, client: Any) -> None:
    """Regression: each sweeper asked for each lease holder: 500 one-slot workers took two thirds of the store's time."""
    workers = lease_holders(queue, 500)
    store = queue.store
    assert isinstance(store, RedisStore)

    def look_all() -> None:
        for worker in workers:
            store.absent(queue.name, sweeper=worker, **LOOK)

    with subscribed(client, queue.name, workers):
        assert commands(client, look_all, only="pubsub") == 1
        assert commands(client, look_all) < 4 * len(workers)


def test_only_who_is_missing_at_two_looks_is_gone(queue: ModelQueue, client: Any) -> None:
    alive, dead = lease_holders(queue, 2)
    store = queue.store
    assert isinstance(store, RedisStore)
    with subscribed(client, queue.name, [alive]):
        first, second = (store.absent(queue.name, sweeper="s1", **LOOK) for _ in range(2))
    assert (first.looked, first.fresh, first.gone) == (True, 1, ())
    assert (second.looked, second.fresh, second.gone) == (True, 0, (dead,))
    with subscribed(client, queue.name, [dead]):
        assert store.absent(queue.name, sweeper="s1", **LOOK).gone == ()
    third = store.absent(queue.name, sweeper="s1", **LOOK)
    assert (third.fresh, third.gone) == (1, (alive,)), "who came back in between is missing anew"


def test_a_sweeper_that_died_or_froze_between_two_looks_is_replaced_and_the_next_look_decides(
    queue: ModelQueue, client: Any
) -> None:
    """What was seen is the store's, so that the sweeper that takes over need not begin again."""
    [dead] = lease_holders(queue, 1)
    store = queue.store
    assert isinstance(store, RedisStore)
    assert store.absent(queue.name, sweeper="froze", **LOOK).fresh == 1
    assert not store.absent(queue.name, sweeper="other", **LOOK).looked
    # The time of the look passes.
    assert client.pexpire(f"ps:{{{queue.name}}}:look", 1)
    found = eventually(
        lambda: next((seen for seen in [store.absent(queue.name, sweeper="other", **LOOK)] if seen.looked), None)
    )
    assert found.gone == (dead,)
    assert not store.absent(queue.name, sweeper="froze", **LOOK).looked, "who wakes up has to wait like others"


def test_a_model_at_rest_is_looked_after_without_a_write(queue: ModelQueue, client: Any) -> None:
    store = queue.store
    assert isinstance(store, RedisStore)
    assert store.absent(queue.name, sweeper="s1", **LOOK).looked
    assert store.absent(queue.name, sweeper="s2", **LOOK).looked
    assert not client.exists(f"ps:{{{queue.name}}}:look")


def test_a_page_of_records_is_reconciled_once_and_not_by_each_worker(queue: ModelQueue, client: Any) -> None:
    """Every worker went over all records by itself: with 500 of them, half a million records in half a minute."""
    store = queue.store
    assert isinstance(store, RedisStore)
    store.submit([queue.new() for _ in range(250)])
    assert [store.reconcile_next(queue.name, pace_s=30.0, heal_s=30.0, limit=100).scanned for _ in range(3)] == [100, 0, 0]
    scanned: list[int] = []
    while not scanned or scanned[-1] == 100:
        assert client.delete(f"ps:{{{queue.name}}}:reconciled")
        scanned.append(store.reconcile_next(queue.name, pace_s=30.0, heal_s=30.0, limit=100).scanned)
    assert scanned == [100, 50], "the next page begins behind the last one"


# --- collection ------------------------------------------------------------------------------------------------------------


class Uncounted:
    def swept(self, report: SweepReport) -> None: ...

    def on_repaired(self, found: Repair) -> None: ...


def test_one_round_of_a_sweeper_collects_all_that_fell_due_since_the_last(queue: ModelQueue, tmp_path: Path) -> None:
    """Regression: a round collected a thousand jobs and no more, so that memory grew for ever above a thousand a second."""
    store = queue.store
    assert isinstance(store, RedisStore)
    store.submit([queue.new(result_ttl_s=0.0) for _ in range(2_500)])
    while jobs := queue.claim(limit=500).jobs:
        queue.finish_all([Ending(job.id, job.token, JobState.SUCCEEDED, OUTPUT) for job in jobs])
    blobs, names = LocalBlobs(tmp_path), {queue.name}
    paces: dict[str, Any] = {"lease_s": 15.0, "beat_s": 4.0, "sweep_s": 1.0}
    sweeper = Sweeper(
        store, blobs, names, name="s", needless=NeedlessBlobs(blobs, store, replicas=0), observer=Uncounted(), **paces
    )
    sweeper.run_once(0.0)
    assert (store.stats(queue.name).counters["collected"], store.newest(queue.name)) == (2_500, [])


# --- what is kept ----------------------------------------------------------------------------------------------------------


def test_killed_workers_are_forgotten(queue: ModelQueue, client: Any) -> None:
    """Regression: the registry kept each worker that was killed for ever, and every reader read it."""
    store, names = queue.store, [f"killed-{number}-{queue.name}" for number in range(20)]
    assert isinstance(store, RedisStore)
    for name in names:
        store.announce_worker(WorkerInfo(name, "here", 1, 0.0), ttl_s=0.0)
    live = WorkerInfo(f"live-{queue.name}", "here", 1, 0.0)
    # What nobody can read must not keep the others from being forgotten.
    names.append(f"unreadable-{queue.name}")
    client.hset("ps:{registry}:workers", names[-1], "no entry")
    client.delete("ps:{registry}:looked")  # as after a second
    store.announce_worker(live, ttl_s=60.0)
    left = {name.decode() for name in client.hkeys("ps:{registry}:workers")}
    assert left.isdisjoint(names)
    assert live.name in left
    store.withdraw_worker(live.name)


def test_a_beat_reads_the_registry_only_when_it_has_another_edition(queue: ModelQueue, client: Any) -> None:
    """Regression: each beat of each worker read the entries of all."""
    store, others = queue.store, OtherEntries()
    assert isinstance(store, RedisStore)
    fleet = [f"{queue.name}-{number}" for number in range(50)]

    def beat(name: str, state: str = "ready", *, busy: int = 0, ttl_s: float = 60.0) -> int:
        return store.announce_worker(WorkerInfo(name, "h", 1, 0.0, (SlotInfo("m", "1", state, restarts=busy),)), ttl_s=ttl_s)

    def reads(edition: int, now: float = 0.0) -> int:
        return commands(client, lambda: others.follow(store, edition, now), only="hgetall")

    for name in fleet:
        beat(name)
    assert reads(beat(fleet[0])) == 2
    assert [reads(beat(name, busy=1)) for name in fleet] == [0] * 50
    client.set("ps:{registry}:looked", "1")  # as after the look of another beat, however slow this machine is
    assert commands(client, lambda: beat(fleet[0])) < 7
    assert reads(beat(fleet[1], "failed")) == 2
    assert {worker.slots[0].state for worker in others.workers if worker.name == fleet[1]} == {"failed"}
    for _ in range(2):  # a worker that drains says so with each beat
        store.withdraw_worker(fleet[2])
    assert reads(beat(fleet[0])) == 2
    beat(fleet[3], ttl_s=0.0)
    client.delete("ps:{registry}:looked")
    assert reads(beat(fleet[0])) == 2
    assert len([worker for worker in others.workers if worker.name in fleet]) == 48
    store.swap_model(queue.name, StoredModel(), ModelInfo(queue.name))
    assert reads(beat(fleet[0])) == 2
    assert queue.name in {info.name for info in others.models}
    # However long nothing changes, an expired entry is not believed for ever.
    assert reads(beat(fleet[0]), now=61.0) == 2
    for name in fleet:
        store.withdraw_worker(name)
    assert client.hkeys("ps:{registry}:edition") == [b"number"]


def test_stages_that_begin_at_the_same_moment_read_the_registry_once(queue: ModelQueue, client: Any, redis_url: str) -> None:
    """Regression: each of the hundreds of drives that found the registry old read all of it."""
    assert isinstance(queue.store, RedisStore)
    queue.store.announce_model(ModelInfo(queue.name, versions={"1": None}))

    async def find() -> set[str]:
        store = AsyncStore(redis_url)
        models = StageModels(store)
        try:
            found = await asyncio.gather(*(models.find(PipelineStage("s", queue.name)) for _ in range(500)))
        finally:
            await store.close()
        return {one.version for one in found}

    assert commands(client, lambda: asyncio.run(find()), only="hgetall") == 2


@pytest.mark.parametrize(
    ("deadline_s", "result_ttl_s", "kept_s"),
    [(60.0, 60.0, 48 * 3_600.0), (3 * 86_400.0, 86_400.0, 4 * 86_400.0), (60.0, 30 * 86_400.0, 30 * 86_400.0)],
)
def test_an_idempotency_key_outlives_the_result(
    queue: ModelQueue, client: Any, deadline_s: float, result_ttl_s: float, kept_s: float
) -> None:
    """Regression: after 48 hours a repeat made a second job, although the first still waited or its result was still kept."""
    queue.submit(idempotency_key="k", fingerprint="f", deadline_s=deadline_s, result_ttl_s=result_ttl_s)
    [key] = client.keys(f"ps:{{{queue.name}}}:idem:*")
    assert kept_s - 60.0 < client.ttl(key) <= kept_s + 2 * 3_600.0
