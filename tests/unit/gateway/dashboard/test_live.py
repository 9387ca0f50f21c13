"""One look at the queues for all who look, and none while nobody does."""

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
from penstock.gateway.dashboard.live import OverviewPoller
from penstock.gateway.models.registry import ModelRegistry
from penstock.model_spec import ModelInfo

BANDS = {0: 3, 6: 0, 9: 0}


class Looked:
    """A store that counts the looks; each finds one job more accepted. `away`: it cannot be asked."""

    def __init__(self) -> None:
        self.looks = 0
        self.away = False

    async def stats_of(self, models: Sequence[str]) -> list[QueueStats]:
        self.looks += 1
        if self.away:
            raise StoreUnavailable("gone")
        ages = dict.fromkeys(BANDS, 0.0)
        return [QueueStats(name, float(self.looks), ready=BANDS, oldest_age_s=ages, accepted=self.looks) for name in models]


@pytest.fixture
def store() -> Looked:
    return Looked()


def board(store: Looked, **more: Any) -> OverviewPoller:
    registry = ModelRegistry(cast("AsyncStore", store), [ModelInfo("square", versions={"1": None})])
    registry._rebuild({}, [])
    return OverviewPoller(
        cast("AsyncStore", store), registry, **{"stop": lambda: False, "tick_s": 0.001, "linger_s": 60.0, **more}
    )


async def test_nobody_looks_and_nothing_is_asked(store: Looked) -> None:
    made = board(store)
    await asyncio.sleep(0)
    await made.close()
    assert store.looks == 0


async def test_all_who_look_share_one_look(store: Looked) -> None:
    made = board(store, tick_s=60.0)
    views = await asyncio.gather(*(made.view() for _ in range(5)))
    assert (store.looks, {view.number for view in views}, views[0].totals.depth) == (1, {1}, 3)
    await made.close()


async def test_views_follow_each_other_and_rates_appear(store: Looked) -> None:
    made, seen = board(store), []
    async for view in made.changes():
        seen.append(view)
        if len(seen) == 3:
            break
    assert seen[0].number < seen[1].number < seen[2].number
    assert (seen[0].rows[0].accepted_per_s, seen[2].rows[0].accepted_per_s) == (None, 1.0)
    assert len(made.history("square").samples) >= 3
    await made.close()


async def test_the_looks_end_when_nobody_has_asked_for_a_while_and_begin_anew(store: Looked) -> None:
    made = board(store, linger_s=0.005)
    await made.view()
    looking = made._looking
    assert looking is not None
    await looking
    looks = store.looks
    assert list(made.history("square").samples) == []
    view = await made.view()
    assert (store.looks, view.number) == (looks + 1, looks + 1)
    await made.close()


async def test_a_store_that_is_away_leaves_what_was_known(store: Looked) -> None:
    made = board(store)
    first = await made.view()
    store.away = True
    views = made.changes()
    while not (view := await anext(views)).away:
        pass
    assert [row.depth for row in view.rows] == [row.depth for row in first.rows] == [3]
    await made.close()


async def test_who_waits_for_a_change_is_let_go_when_the_gateway_ends(store: Looked) -> None:
    ending = False
    made = board(store, stop=lambda: ending)
    views = made.changes()
    await anext(views)
    ending = True
    with pytest.raises(StopAsyncIteration):
        await anext(views)
    await made.close()


def test_a_gateway_that_nobody_looks_at_loads_no_library_for_pages() -> None:
    program = "import sys, penstock.gateway; print(*{'jinja2', 'markupsafe'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
