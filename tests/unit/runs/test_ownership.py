"""Who drives a run: one driver at a time, another driver after the first has died, and none after the run has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from msgspec.structs import replace

from penstock.broker.contract import UpdateStatus
from penstock.broker.run_contract import RunChange
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import Conflict, NotFound
from penstock.model_spec import ModelInfo, SlotInfo, WorkerInfo
from penstock.rollout import Rollout
from penstock.run import RETRY_OF, Run, RunCounts, RunSpec, RunState, retry_spec
from penstock.runs.driver import StopReason
from penstock.runs.lease import LEASE_S, OwnedRun, RunLease
from penstock.runs.model_lookup import Slots, find_served, slots_of
from penstock.runs.ownership import (
    DrivenElsewhere,
    cancel_run,
    driver_name,
    is_gone,
    is_orphaned,
    reopen_run,
    take_run,
)
from penstock.runs.progress import ProgressMeter, RunProgress
from penstock.runs.runner import runs_to_begin

SPEC = RunSpec(model="m", input="/in.jsonl", output="/out.jsonl")
ELSEWHERE = "another-machine:1:2:x"


@pytest.fixture
def runs(fresh_redis: str) -> Iterator[RunStore]:
    with closing(RedisStore(fresh_redis)) as store:
        runs = RunStore(store)
        runs.create("r", SPEC)
        yield runs


def dead_driver() -> str:
    """The name of a driver whose process has ended."""
    code = "from penstock.runs.ownership import driver_name; print(driver_name())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_process_knows_itself_alive_and_one_that_ended_gone() -> None:
    assert not is_gone(driver_name())
    assert is_gone(dead_driver())
    assert not is_gone(ELSEWHERE), "this machine cannot tell of a process on another one"
    host, pid, _, place, serial = driver_name().split(":")
    assert is_gone(f"{host}:{pid}:1:{place}:{serial}"), "the same number, another process"


@pytest.mark.parametrize("place", ["", "another-boot-4026531836", "{boot}-1"])
def test_a_process_number_means_nothing_in_another_boot_or_pid_namespace(place: str) -> None:
    """Containers that share a host name took each other's runs: the other's process number was free or another process here."""
    host, _, _, mine, serial = driver_name().split(":")
    there = place.format(boot=mine.rpartition("-")[0])
    assert not is_gone(f"{host}:{os.getpid()}:1:{there}:{serial}")
    assert not is_gone(f"{host}:99999999:1:{there}:{serial}")


def test_a_process_whose_files_in_proc_are_hidden_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, started, place, serial = driver_name().split(":")
    mine = os.getpid()
    monkeypatch.setattr("penstock.runs.ownership._start_of", lambda pid: started if pid == mine else "")
    assert not is_gone(f"{host}:{os.getppid()}:{started}:{place}:{serial}")


def test_a_run_whose_driver_died_here_is_taken_at_once_and_one_driven_elsewhere_is_not(runs: RunStore) -> None:
    runs.take("r", dead_driver(), lease_s=60.0)
    owned = take_run(runs, "r")
    assert not is_gone(owned.driver)
    assert runs.update("r", owned.driver, RunChange(), lease_s=60.0) is UpdateStatus.OK
    runs.create("other", SPEC)
    runs.take("other", ELSEWHERE, lease_s=60.0)
    with pytest.raises(DrivenElsewhere, match="another-machine"):
        take_run(runs, "other")
    with pytest.raises(NotFound):
        take_run(runs, "nothing")


def test_an_ended_run_is_opened_again_unless_it_is_completed(runs: RunStore) -> None:
    owned = take_run(runs, "r")
    runs.update("r", owned.driver, RunChange(state=RunState.FAILED), lease_s=0)
    with pytest.raises(Conflict, match="has ended"):
        take_run(runs, "r")
    reopen_run(runs, "r")
    owned = take_run(runs, "r")
    runs.update("r", owned.driver, RunChange(state=RunState.COMPLETED), lease_s=0)
    with pytest.raises(Conflict, match="nothing left"):
        reopen_run(runs, "r")
    with pytest.raises(NotFound):
        reopen_run(runs, "nothing")


def test_a_cancel_ends_a_run_that_nobody_drives_and_is_requested_of_the_driver_of_another(runs: RunStore) -> None:
    runs.take("r", dead_driver(), lease_s=60.0)
    assert cancel_run(runs, "r") == "cancelled"
    with pytest.raises(Conflict, match="ended already"):
        cancel_run(runs, "r")
    runs.create("other", SPEC)
    runs.take("other", ELSEWHERE, lease_s=60.0)
    assert cancel_run(runs, "other") == "cancel requested"
    assert runs.update("other", ELSEWHERE, RunChange(), lease_s=60.0) is UpdateStatus.CANCEL


def test_a_lease_passes_on_a_cancel_and_the_deadline(runs: RunStore) -> None:
    owned = take_run(runs, "r")
    seen: list[RunProgress] = []
    lease = RunLease(owned, runs, count_slots=lambda: Slots(3), on_progress=seen.append)
    lease.refresh_slots()
    lease.on_progress(RunProgress(RunCounts(done=5), rows_per_s=2.0))
    lease.beat()
    record = runs.read("r")
    assert record is not None
    assert (record.counts.done, record.rows_per_s, lease.slots().ready, lease.stop_reason()) == (5, 2.0, 3, StopReason.GO_ON)
    runs.ask_cancel("r")
    lease.beat()
    assert lease.stop_reason() is StopReason.CANCEL
    late = RunLease(replace_run(owned.run, deadline_s=1.0), runs, count_slots=Slots, on_progress=seen.append)
    assert (late.stop_reason(), late.left_s() <= -1.0) == (StopReason.EXPIRE, True)
    assert (lease.left_s(), lease.now() >= 1_000.0) == (float("inf"), True)


def replace_run(run: Run, *, deadline_s: float) -> OwnedRun:
    """The run as it is taken two seconds after its creation."""
    return OwnedRun(replace(run, spec=replace(run.spec, deadline_s=deadline_s)), "d", run.created_at + 2.0)


def test_a_run_that_was_cut_short_and_has_an_output_is_not_driven_again(runs: RunStore) -> None:
    """Its output would be taken for that of the whole run: `resume --failed` runs the rows that did not run."""
    owned = take_run(runs, "r")
    published = RunChange(RunState.CANCELLED, RunCounts(total=9, done=4), details={"output": {"path": "o"}})
    runs.update("r", owned.driver, published, lease_s=0)
    with pytest.raises(Conflict, match="its output has the rows that ran") as refusal:
        reopen_run(runs, "r")
    assert refusal.value.hint == "to run the others: penstock run resume r --failed"
    found = runs.read("r")
    assert found is not None
    assert (found.not_reached, retry_spec(found).metadata[RETRY_OF]) == (5, "r")


def test_a_lease_whose_record_is_gone_creates_it_again(runs: RunStore) -> None:
    owned = take_run(runs, "r")
    lease = RunLease(owned, runs, count_slots=Slots, on_progress=lambda progress: None)
    runs.ask_cancel("r")
    runs.update("r", owned.driver, RunChange(state=RunState.CANCELLED), lease_s=0)
    runs.drop("r")
    lease.beat()
    found = runs.read("r")
    assert found is not None
    assert (found.driver, lease.stop_reason()) == (owned.driver, StopReason.GO_ON)


TWO = (("suspect", 2), ("other", 0))


def test_a_run_whose_driver_died_before_it_got_any_further_runs_alone() -> None:
    def run(name: str, drives: int = 0) -> Run:
        return Run(id=name, spec=SPEC, state=RunState.QUEUED, created_at=0.0, drives=drives)

    def begun(waiting: list[Run], *, under_way: int = 0, is_alone: bool = False) -> list[str]:
        return [each.id for each in runs_to_begin(waiting, under_way=under_way, is_alone=is_alone)]

    assert begun([run("a"), run("b")]) == ["a", "b"]
    assert begun([run("suspect", 1), run("b")]) == ["suspect"]
    assert begun([run("a"), run("suspect", 1)]) == ["a"]
    assert begun([run("a")], under_way=1, is_alone=True) == []


def test_a_suspect_run_is_passed_over_while_others_are_under_way() -> None:
    """Regression: one suspect run blocked every run behind it, of all owners, for as long as another run went on."""
    suspect, other = (Run(id=name, spec=SPEC, state=RunState.QUEUED, created_at=0.0, drives=drives) for name, drives in TWO)
    assert runs_to_begin([suspect, other], under_way=1, is_alone=False) == [other]
    assert runs_to_begin([suspect, suspect], under_way=1, is_alone=False) == []
    assert runs_to_begin([suspect, other], under_way=0, is_alone=False) == [suspect]


def test_a_run_that_nobody_drives_any_more_is_orphaned(runs: RunStore) -> None:
    left = Run(id="left", spec=SPEC, state=RunState.RUNNING, created_at=0.0, driver=ELSEWHERE, driver_until=9.0)
    assert is_orphaned(left, now=10.0)
    assert not is_orphaned(replace(left, driver_until=99.0), now=10.0)


class Served:
    def models(self) -> list[ModelInfo]:
        return [ModelInfo("m", "1", versions={"1": None, "2": None})]

    def workers(self) -> list[WorkerInfo]:
        return []

    def rollouts(self) -> dict[str, Rollout]:
        return {"m": Rollout(default_version="2", removed={"1": 0.0})}


def test_a_run_is_pinned_to_the_version_in_force() -> None:
    assert find_served(Served(), "m").version == "2"
    with pytest.raises(NotFound, match="no longer has version"):
        find_served(Served(), "m", version="1")
    with pytest.raises(NotFound, match="the served models are m"):
        find_served(Served(), "n")


def test_what_keeps_a_model_from_serving_is_said() -> None:
    def slots_in(*states: str) -> Slots:
        slots = tuple(SlotInfo("m", "1", state, error="no such file" if state == "failed" else "") for state in states)
        return slots_of([WorkerInfo("w", "h", 1, 0.0, slots)], "m", "1")

    assert slots_in("ready", "failed", "ready") == Slots(2)
    assert "no such file" in slots_in("failed", "loading").why
    assert "being loaded" in slots_in("loading").why
    assert slots_in() == Slots()


def test_progress_tells_the_rate_of_the_last_seconds_the_busy_share_and_what_is_left() -> None:
    meter = ProgressMeter(RunCounts(total=1_000, done=100), now=0.0)
    for second in range(1, 21):
        meter.add_rows(done=10 if second > 10 else 30, failed=0, now=float(second))
        meter.add_device_time(1.0)
    progress = meter.measure(20.0, slots=2)
    assert progress.rows_per_s == pytest.approx(10.0, rel=0.3)
    assert progress.busy == pytest.approx(0.5)
    assert progress.counts.done == 500
    assert progress.eta_s == pytest.approx(500 / progress.rows_per_s)
    assert meter.mean_rate(20.0) == pytest.approx(20.0)


def test_a_lease_lasts_by_this_process_own_clock_from_before_the_call_that_the_store_granted(runs: RunStore) -> None:
    now = [100.0]
    lease = RunLease(take_run(runs, "r"), runs, count_slots=Slots, on_progress=lambda progress: None, clock=lambda: now[0])
    assert not lease.is_held(), "the store has granted nothing yet"
    lease.beat()
    assert lease.is_held()
    now[0] += LEASE_S - 1.9
    assert not lease.is_held(), "the store may give the run to another driver before this one knows"
    assert lease.write(RunChange()) is UpdateStatus.OK
    assert lease.is_held()
    runs.update("r", runs_driver(runs), RunChange(state=RunState.FAILED), lease_s=0)
    now[0] += LEASE_S
    lease.beat()
    assert (lease.is_held(), lease.stop_reason()) == (False, StopReason.LOST)


def runs_driver(runs: RunStore) -> str:
    found = runs.read("r")
    assert found is not None
    return found.driver
