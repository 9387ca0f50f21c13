"""Faults of runs over files that every change must survive, with few rows; `make faults` runs them with many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.checker import Verdict
from tests.faults.run_stack import RunStack, run_stack
from tests.faults.scenarios.runs import freeze_drivers, frozen_runner, kill_everything, watch_a_run
from tests.faults.shared import Shared
from tests.faults.test_faults import check

ROW_S = 0.0005
OF_RUNS: dict[str, Callable[[RunStack], Verdict]] = {
    "F33": lambda stack: watch_a_run(stack, rows=4_000),
    "F39": lambda stack: kill_everything(stack, seeds=range(1, 2), rows=3_000, lasts_s=3_000 * ROW_S),
}


def freeze(folder: Path) -> Verdict:
    with run_stack(folder, row_s=ROW_S) as stack:
        return freeze_drivers(stack, [frozen_runner], rows=4_000)


@pytest.fixture(scope="module")
def frozen(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[Verdict]]:
    """F39-freeze on a stack of its own, beside the other faults: most of it is the wait until the lease of a run is over."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(freeze, tmp_path_factory.mktemp("frozen"))


@pytest.fixture(scope="module")
def shared(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[RunStack]]:
    def make() -> RunStack:
        stack = RunStack(tmp_path_factory.mktemp("runs"), row_s=ROW_S)
        stack.start()
        return stack

    with closing(Shared(make)) as shared:
        yield shared


@pytest.mark.parametrize("name", OF_RUNS)
def test_no_row_of_a_run_is_lost_or_torn(name: str, frozen: Future[Verdict], shared: Shared[RunStack]) -> None:
    check(name, shared.play(OF_RUNS[name]))


def test_no_row_is_lost_to_a_driver_that_freezes(frozen: Future[Verdict]) -> None:
    check("F39-freeze", frozen.result())
