"""Faults that every change must survive, one of each kind, with small counts and on shared stacks; `make faults` runs all.

Each test is one line of the score sheet: nothing accepted is lost, no final view changes, no answer is unexpected, nothing is
stuck, and a dump of the store holds the invariants; the scenario adds its own limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.faults.catalogue import ABSENT, FAULTS, PENSTOCK
from tests.faults.checker import Verdict
from tests.faults.processes import Group
from tests.faults.proxy import Proxy
from tests.faults.run_stack import RunStack, run_stack
from tests.faults.scenarios import every_fault
from tests.faults.scenarios.children import kill_child
from tests.faults.scenarios.gateway_loss import kill_before_reply
from tests.faults.scenarios.kill_storm import kill_one
from tests.faults.scenarios.links import Break, break_and_heal
from tests.faults.scenarios.meaning import race_cancels, submit_under_one_key
from tests.faults.scenarios.runs import freeze_drivers, frozen_runner, kill_everything, watch_a_run
from tests.faults.scenarios.space import fill_memory
from tests.faults.scenarios.store_loss import cut_power
from tests.faults.scenarios.worker_loss import freeze_before_settling, kill_at_sites
from tests.faults.shared import Scene, Shared, SharedStack
from tests.faults.stack import Plan, Stack

ROW_S = 0.0005
PLAN = Plan(workers=2, lease_s=3.0, beat_s=0.75, model={"max_batch_size": 4, "max_attempts": 50, "max_crashes": 3})
# Silence lasts longer than the 1.5 s after which a gateway takes a store for gone.
BREAKS: dict[str, tuple[Break, int, float]] = {
    "reset": (Proxy.reset, 1, 0.0),
    "resets": (Proxy.reset, 3, 0.6),
    "refuse": (Proxy.refuse, 1, 0.5),
    "blackhole": (Proxy.blackhole, 1, 3.0),
    "half_open": (Proxy.half_open, 1, 0.0),
}
# Whether work goes on at all is judged here; how soon it does is judged where the sheet is made, by a machine of its own.
PATIENCE_S = 30.0


def cut_power_once(stack: Stack) -> Verdict:
    if not stack.server.environment:
        pytest.skip("noting what an fsync covers needs a C compiler")
    return cut_power(stack, "F18", rounds=1, random=Random(1))[0]


def break_every_link(stack: Stack) -> Verdict:
    return break_and_heal(stack, BREAKS, apart_s=0.3, within_s=PATIENCE_S, most_s=PATIENCE_S)


def fill_and_clear_memory(stack: Stack) -> Verdict:
    verdict = fill_memory(stack)
    with stack.server.client() as client:
        client.config_set("maxmemory", 0)
    return verdict


def kill_behind_finish(stack: Stack) -> Verdict:
    return kill_at_sites(stack, ["after_finish_before_reply"], Random(1))


# In this order few processes are started: the one that a scene has killed is needed by none of the next ones.
SCENES: dict[str, Scene] = {
    "F5-late": Scene(freeze_before_settling, workers=2, begun=False),
    "F2-one": Scene(kill_one, workers=2),
    "F1": Scene(kill_child),
    "F18": Scene(cut_power_once),
    "F22": Scene(fill_and_clear_memory),
    "F25": Scene(break_every_link),
    "F34": Scene(lambda stack: submit_under_one_key(stack, rounds=2)),
    "F35": Scene(lambda stack: race_cancels(stack, races=60)),
    "F14": Scene(lambda stack: kill_before_reply(stack, rounds=1)),
    "F3": Scene(kill_behind_finish),
}
OF_RUNS: dict[str, Callable[[RunStack], Verdict]] = {
    "F33": lambda stack: watch_a_run(stack, rows=4_000),
    "F39": lambda stack: kill_everything(stack, seeds=range(1, 2), rows=3_000, lasts_s=3_000 * ROW_S),
}


def freeze(folder: Path) -> Verdict:
    with run_stack(folder, row_s=ROW_S) as stack:
        return freeze_drivers(stack, [frozen_runner], rows=4_000)


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """Let all processes be forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Group, "forked", True)
        yield


@pytest.fixture(scope="module")
def frozen(has_server: None, forked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[Verdict]]:
    """F39-freeze on a stack of its own, beside the other faults: most of it is the wait until the lease of a run is over."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(freeze, tmp_path_factory.mktemp("frozen"))


@pytest.fixture(scope="module")
def shared(frozen: Future[Verdict], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[SharedStack]]:
    def make() -> SharedStack:
        stack = SharedStack(PLAN, tmp_path_factory.mktemp("stack"))
        stack.start()
        return stack

    with closing(Shared(make)) as shared:
        yield shared


@pytest.fixture(scope="module")
def shared_for_runs(has_server: None, forked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[RunStack]]:
    def make() -> RunStack:
        stack = RunStack(tmp_path_factory.mktemp("runs"), row_s=ROW_S)
        stack.start()
        return stack

    with closing(Shared(make)) as shared:
        yield shared


@pytest.mark.parametrize("name", SCENES)
def test_no_accepted_job_is_lost_and_no_answer_changes(name: str, shared: Shared[SharedStack]) -> None:
    scene = SCENES[name]
    check(name, shared.play(lambda stack: scene.play(stack.staff(scene))))


@pytest.mark.parametrize("name", OF_RUNS)
def test_no_row_of_a_run_is_lost_or_torn(name: str, shared_for_runs: Shared[RunStack]) -> None:
    check(name, shared_for_runs.play(OF_RUNS[name]))


def test_no_row_is_lost_to_a_driver_that_freezes(frozen: Future[Verdict]) -> None:
    check("F39-freeze", frozen.result())


def check(name: str, verdict: Verdict) -> None:
    assert verdict.passed, f"{FAULTS[name, PENSTOCK].title}: {verdict}"
    assert verdict.fault == name
    assert verdict.accepted > 0


def test_every_fault_of_the_catalogue_is_injected_or_says_why_not() -> None:
    injected = {fault.number for fault in every_fault()} | {int(name[1:]) for name in ABSENT}
    assert injected == set(range(1, 43))
