"""Gateways that decide about a canary, on a real store: each step is made once, whoever looks, whatever their clocks say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.sync import RedisStore
from penstock.extensions.splits.canary import UNREADY_S, Canary, CanaryState
from penstock.extensions.splits.figures import bucket_of
from penstock.extensions.splits.gateway.canaries import CanaryJudge
from penstock.extensions.splits.gateway.part import jobs
from penstock.extensions.splits.gateway.service import SplitService
from penstock.extensions.splits.split import Shadow, Split, kept_split, split_of
from penstock.extensions.splits.store import count_split
from penstock.gateway.jobs.extending import JobsHost
from penstock.gateway.models.changes import change_rollout
from penstock.gateway.models.registry import ModelRegistry
from penstock.model_spec import ModelInfo, SlotInfo, VersionInfo, WorkerInfo
from penstock.settings.tables import Settings

INFO = ModelInfo("m", "1", versions={"1": VersionInfo(), "2": VersionInfo()})
PLAN = Canary("2", steps=(10.0, 100.0), step_s=60.0, min_samples=20)
Scene = Callable[[AsyncStore, RedisStore, list[ModelRegistry]], Awaitable[None]]


def play(redis_url: str, scene: Scene, *, gateways: int = 2) -> None:
    """Run a scene with the registries of some gateways, of which none refreshes on its own."""

    async def run() -> None:
        store = AsyncStore(redis_url)
        await store.start()
        try:
            with closing(RedisStore(redis_url)) as worker:
                worker.announce_model(INFO)
                announce(worker, "1", "2")
                host = JobsHost(Settings.load(None, {}), store, LocalBlobs(Path("nowhere")))
                part = jobs(host).models
                assert part is not None
                registries = [ModelRegistry(store, [INFO], [part]) for _ in range(gateways)]
                await scene(store, worker, registries)
        finally:
            await store.close()

    asyncio.run(run())


def announce(store: RedisStore, *ready: str) -> None:
    slots = tuple(SlotInfo("m", version, "ready") for version in ready)
    store.announce_worker(WorkerInfo("w", "here", 1, 0.0, slots=slots), ttl_s=600.0)


async def divide(store: AsyncStore, canary: Canary, *, ago_s: float = 0.0, model: str = "m") -> None:
    """A split whose present step began so many seconds ago by the store's clock."""
    began = await store.now() - ago_s
    split = Split("s", {"1": 100.0}, canary=Canary(**{**_fields(canary), "since": began}), made_at=began)
    await change_rollout(store, model, lambda rollout: rollout.divide(kept_split(split)))


def _fields(canary: Canary) -> dict[str, Any]:
    return {name: getattr(canary, name) for name in Canary.__dataclass_fields__}


async def count(store: AsyncStore, name: str, version: str, *, good: int, failed: int = 0, ms: int = 100) -> None:
    counts = {f"{version},succeeded": good, f"{version},~{bucket_of(ms)}": good, f"{version},failed": failed}
    await store.run(count_split("m", name, counts))


async def looked(store: AsyncStore, registries: list[ModelRegistry], judges: list[CanaryJudge]) -> Split:
    """All gateways look at the same moment, and then all decide."""
    for registry in registries:
        await registry.refresh()
    await asyncio.gather(*(judge.judge(one.rollouts, [one.models["m"]]) for one, judge in zip(registries, judges, strict=True)))
    found = split_of((await store.rollouts())["m"].rollout.split)
    assert found is not None
    return found


def test_gateways_that_see_the_same_make_a_step_once_and_promote_in_the_end(fresh_redis: str) -> None:
    async def scene(store: AsyncStore, worker: RedisStore, registries: list[ModelRegistry]) -> None:
        judges = [CanaryJudge(store) for _ in registries]
        await divide(store, PLAN, ago_s=61.0)
        await count(store, "s.0", "1", good=200)
        await count(store, "s.0", "2", good=25)
        with capture_logs() as logged:
            split = await looked(store, registries, judges)
            # The new step has no figures yet, and nothing is decided by the old ones.
            assert await looked(store, registries, judges) == split
        assert split.canary is not None
        assert (split.canary.step, split.figures, len(split.decisions)) == (1, "s.1", 1)
        assert [line["event"] for line in logged] == ["canary_stepped_up"]
        assert {"model": "m", "version": "2", "before": 10.0, "after": 100.0}.items() <= logged[0].items()
        await count(store, "s.1", "2", good=25)
        await divide_again(store, split, ago_s=61.0)
        split = await looked(store, registries, judges)
        assert split.canary is not None
        assert split.canary.state is CanaryState.PROMOTED
        assert (await store.rollouts())["m"].rollout.default_version == "2"
        assert await looked(store, registries, judges) == split

    play(fresh_redis, scene)


def test_the_copies_of_a_shadow_are_no_baseline_for_a_canary(fresh_redis: str) -> None:
    # Regression: a shadow that stood among the weights with none counted among the other versions, with copies that wait
    # behind all other work and fail as they like.
    async def scene(store: AsyncStore, worker: RedisStore, registries: list[ModelRegistry]) -> None:
        began = await store.now() - 61.0
        canary = Canary(**{**_fields(PLAN), "since": began})
        split = Split("s", {"1": 100.0, "3": 0.0}, shadow=Shadow("3", 100.0), canary=canary, made_at=began)
        await change_rollout(store, "m", lambda rollout: rollout.divide(kept_split(split)))
        await count(store, "s.0", "1", good=200)
        await count(store, "s.0", "3", good=0, failed=400)
        await count(store, "s.0", "2", good=10, failed=15)
        split = await looked(store, registries, [CanaryJudge(store) for _ in registries])
        assert split.canary is not None
        assert split.canary.state is CanaryState.STEPPED_BACK

    play(fresh_redis, scene)


async def divide_again(store: AsyncStore, split: Split, *, ago_s: float) -> None:
    """The same split, as if its present step had begun so many seconds ago."""
    assert split.canary is not None
    kept = kept_split(split)
    kept["canary"]["since"] = await store.now() - ago_s
    await change_rollout(store, "m", lambda rollout: rollout.divide(kept))


@pytest.mark.parametrize(
    ("own", "why"),
    [({"good": 10, "failed": 10}, "10 of 20 jobs ended in an error"), ({"good": 20, "ms": 900}, "20 of 20 jobs took longer")],
)
def test_a_canary_beyond_a_bound_gets_nothing_any_more(fresh_redis: str, own: dict[str, int], why: str) -> None:
    async def scene(store: AsyncStore, worker: RedisStore, registries: list[ModelRegistry]) -> None:
        await divide(store, PLAN)
        await count(store, "s.0", "1", good=200)
        await count(store, "s.0", "2", **own)
        with capture_logs() as logged:
            split = await looked(store, registries, [CanaryJudge(store) for _ in registries])
        assert split.shares() == {"1": 100.0, "2": 0.0}
        assert [(line["event"], line["log_level"]) for line in logged] == [("canary_stepped_back", "warning")]
        assert why in logged[0]["reason"]
        await registries[0].refresh()
        assert registries[0].models["m"].chooser is not None
        assert {(await registries[0].find("m", headers=()))[1].name for _ in range(20)} == {"1"}
        view = await SplitService(store, registries[0]).view("m")
        assert (view["canary"]["state"], why in view["canary"]["why"]) == ("stepped_back", True)

    play(fresh_redis, scene)


def test_a_canary_whose_worker_is_gone_is_stepped_back_although_none_of_its_jobs_ends(fresh_redis: str) -> None:
    async def scene(store: AsyncStore, worker: RedisStore, registries: list[ModelRegistry]) -> None:
        now = [0.0]
        judges = [CanaryJudge(store, clock=lambda: now[0]) for _ in registries]

        async def look_for(seconds: float, *ready: str) -> Split:
            announce(worker, *ready)
            for _ in range(int(seconds)):
                found = await looked(store, registries, judges)
                now[0] += 1.0
            return found

        await divide(store, PLAN)
        assert (await look_for(UNREADY_S, "1")).is_deciding
        assert (await look_for(1.0, "1", "2")).is_deciding  # its child came back in time, and the count begins anew
        assert (await look_for(UNREADY_S, "1")).is_deciding
        now[0] += 3_600.0  # a freeze, or a store out of reach: nobody knows what was in between
        assert (await look_for(UNREADY_S, "1")).is_deciding
        split = await look_for(2.0, "1")
        assert split.decisions[-1].reason == "no worker has been ready to run version 2 for 11 s"

    play(fresh_redis, scene)


def test_a_step_is_timed_by_the_clock_of_the_store_alone(fresh_redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(store: AsyncStore, worker: RedisStore, registries: list[ModelRegistry]) -> None:
        await divide(store, PLAN)
        await count(store, "s.0", "1", good=200)
        await count(store, "s.0", "2", good=25)
        monkeypatch.setattr("time.time", lambda: 4e9)
        assert (await looked(store, registries, [CanaryJudge(store) for _ in registries])).is_deciding
        await divide(store, PLAN, ago_s=61.0)
        monkeypatch.setattr("time.time", lambda: 1e9)
        assert (await looked(store, registries, [CanaryJudge(store) for _ in registries])).decisions

    play(fresh_redis, scene)


def test_a_split_that_a_later_release_wrote_otherwise_leaves_the_default_version(fresh_redis: str) -> None:
    async def scene(store: AsyncStore, worker: RedisStore, registries: list[ModelRegistry]) -> None:
        await change_rollout(store, "m", lambda rollout: rollout.divide({"id": "s", "weights": ["1", "2"]}))
        with capture_logs() as logged:
            await registries[0].refresh()
        assert [line["event"] for line in logged] == ["split_unreadable"]
        assert registries[0].models["m"].chooser is None
        assert (await registries[0].find("m", headers=()))[1].name == "1"
        await SplitService(store, registries[0]).end("m")
        assert (await store.rollouts()) == {}

    play(fresh_redis, scene)


def test_a_version_that_is_served_no_longer_leaves_its_share_to_the_others(fresh_redis: str) -> None:
    async def scene(store: AsyncStore, worker: RedisStore, registries: list[ModelRegistry]) -> None:
        split = Split("s", {"1": 50.0, "2": 50.0}, sticky="x-user")
        await change_rollout(store, "m", lambda rollout: rollout.divide(kept_split(split)).unload("2", 0.0))
        await registries[0].refresh()
        users = [((b"x-user", str(number).encode()),) for number in range(20)]
        assert {(await registries[0].find("m", headers=user))[1].name for user in users} == {"1"}

    play(fresh_redis, scene, gateways=1)
