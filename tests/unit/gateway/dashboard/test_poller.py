"""One poll of the queues for all viewers, and none while there are no viewers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, cast

import pytest

from penstock.broker.records import QueueStats
from penstock.broker.store.aio import AsyncStore
from penstock.errors import StoreUnavailable
from penstock.gateway.dashboard.poller import OverviewPoller
from penstock.gateway.models.registry import ModelRegistry
from penstock.model_spec import ModelInfo

BANDS = {0: 3, 6: 0, 9: 0}


class CountingStore:
    """A store that counts its polls; each poll finds one more accepted job. While `away` is set, the store does not answer."""

    def __init__(self) -> None:
        self.polls = 0
        self.away = False

    async def refused(self) -> dict[str, float]:
        return {}

    async def stats_of(self, models: Sequence[str]) -> list[QueueStats]:
        self.polls += 1
        if self.away:
            raise StoreUnavailable("gone")
        ages = dict.fromkeys(BANDS, 0.0)
        return [QueueStats(name, float(self.polls), ready=BANDS, oldest_age_s=ages, accepted=self.polls) for name in models]


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def poller_of(store: CountingStore, **more: Any) -> OverviewPoller:
    registry = ModelRegistry(cast("AsyncStore", store), [ModelInfo("square", versions={"1": None})])
    registry._rebuild({}, [])
    return OverviewPoller(
        cast("AsyncStore", store), registry, **{"is_stopping": lambda: False, "tick_s": 0.001, "linger_s": 60.0, **more}
    )


async def test_without_viewers_nothing_is_polled(store: CountingStore) -> None:
    poller = poller_of(store)
    await asyncio.sleep(0)
    await poller.close()
    assert store.polls == 0


async def test_all_viewers_share_one_poll(store: CountingStore) -> None:
    poller = poller_of(store, tick_s=60.0)
    views = await asyncio.gather(*(poller.overview() for _ in range(5)))
    assert (store.polls, {view.number for view in views}, views[0].totals.depth) == (1, {1}, 3)
    await poller.close()


async def test_views_follow_each_other_and_rates_appear(store: CountingStore) -> None:
    poller, seen = poller_of(store), []
    async for view in poller.changes():
        seen.append(view)
        if len(seen) == 3:
            break
    assert seen[0].number < seen[1].number < seen[2].number
    assert (seen[0].rows[0].accepted_per_s, seen[2].rows[0].accepted_per_s) == (None, 1.0)
    await poller.close()


async def test_polling_ends_some_time_after_the_last_viewer_and_begins_again_with_the_next(store: CountingStore) -> None:
    poller = poller_of(store, linger_s=0.005)
    await poller.overview()
    polling = poller._polling
    assert polling is not None
    await polling
    polls = store.polls
    view = await poller.overview()
    assert (store.polls, view.number) == (polls + 1, polls + 1)
    assert (view.rows[0].spark, view.rows[0].accepted_per_s) == (None, None)
    await poller.close()


async def test_while_the_store_is_away_the_last_known_rows_stay(store: CountingStore) -> None:
    poller = poller_of(store)
    first = await poller.overview()
    store.away = True
    views = poller.changes()
    while not (view := await anext(views)).away:
        pass
    assert [row.depth for row in view.rows] == [row.depth for row in first.rows] == [3]
    await poller.close()


async def test_a_viewer_that_waits_for_a_change_is_released_when_the_gateway_stops(store: CountingStore) -> None:
    ending = False
    poller = poller_of(store, is_stopping=lambda: ending)
    views = poller.changes()
    await anext(views)
    ending = True
    with pytest.raises(StopAsyncIteration):
        await anext(views)
    await poller.close()


def test_a_gateway_that_nobody_polls_at_loads_no_library_for_pages() -> None:
    program = "import sys, penstock.gateway; print(*{'jinja2', 'markupsafe'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
