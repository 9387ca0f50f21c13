"""Runs over files: the window of what is under way, and everything killed in the middle: F33 and F39."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import psutil

from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.run import Run, RunSpec, RunState
from tests.eventually import eventually
from tests.faults.catalogue import PENSTOCK, Setting, fault
from tests.faults.checker import Verdict, with_asked
from tests.faults.processes import Group
from tests.faults.run_stack import MODEL, RunStack, outputs, run_stack, write_rows

# Less than the shards that are open at once hold together, so that the window is what bounds them.
WINDOW_ROWS = 1_000
_SHARD_ROWS = 500
_MIB = 1 << 20
_KILL_WINDOW_ROWS = 400
_ROW_S = 0.0003
_TRIES = 12
# Slow enough for two drivers to be at work at the same time.
_FROZEN_ROW_S = 0.001
# It stands still with rows in its hands that are neither synced nor noted.
_FREEZES = {"PENSTOCK_FAULT": "before_run_commit:stop:2"}
# Drives a run to that output, freezes its driver, thaws it once another driver has the run; returns what went wrong.
Drive = Callable[[RunStack, Path], list[str]]


def verdict(name: str, *, rows: int, missing: int, extra: int, complaints: list[str], notes: str) -> Verdict:
    """For a run, a row is what a job is elsewhere."""
    done = rows - missing
    return Verdict(name, PENSTOCK, rows, done, missing, 0, extra, None, 0, 0, not complaints, notes, tuple(complaints))


@fault("F33", "a run over a million lines: what is under way, and what it holds in memory")
def long_input(setting: Setting) -> Verdict:
    with run_stack(setting.folder, row_s=0.0) as stack:
        return watch_a_run(stack, rows=setting.count(30_000, 1_000_000))


def watch_a_run(stack: RunStack, *, rows: int) -> Verdict:
    out = stack.folder / "out.jsonl"
    wanted = write_rows(stack.folder / "in.jsonl", rows)
    run = stack.command(MODEL, str(stack.folder / "in.jsonl"), "-o", str(out),
                        "--shard-rows", str(_SHARD_ROWS), "--window-rows", str(WINDOW_ROWS))  # fmt: skip
    run.start()
    open_rows, resident = zip(*_watched(stack, run), strict=True)
    code = run.wait()
    complaints = [] if code == 0 else [f"the run ended with {code}: {stack.logs()}"]
    complaints += _differences(out, wanted)
    asked = stack.asker.conclude()
    half = len(resident) // 2
    grown = (max(resident[half:]) - max(resident[:half])) / _MIB
    most = max(open_rows)
    # A prediction that is asked for meanwhile is counted like a shard.
    allowed = WINDOW_ROWS + _SHARD_ROWS
    complaints += [f"{most} rows were under way, {allowed} allowed"] if most > allowed else []
    complaints += [f"the driver grew by {grown:.0f} MiB, 16 allowed"] if grown > 16 else []
    notes = f"{rows:,} rows, at most {most:,} under way, driver {grown:+.1f} MiB in the second half; uploads: gateway tests"
    found = verdict("F33", rows=rows, missing=0 if code == 0 else rows, extra=0, complaints=complaints, notes=notes)
    return with_asked(found, asked)


def _watched(stack: RunStack, run: Group) -> Iterator[tuple[int, int]]:
    """Rows of shards that have not ended, and the driver's resident bytes, until it ends."""
    with contextlib.closing(RedisStore(stack.server.url)) as store:
        while run.running:
            stats = store.stats(MODEL)
            with contextlib.suppress(psutil.NoSuchProcess):
                yield (stats.accepted - sum(stats.ended.values())) * _SHARD_ROWS, psutil.Process(run.pid).memory_info().rss
            time.sleep(0.02)


@fault("F39", "kill -9 of driver, worker and store in the middle of a run, then resume")
def everything_killed(setting: Setting) -> Verdict:
    seeds, rows = setting.count(2, 30), setting.count(2_500, 6_000)
    row_s = _ROW_S if setting.full else _FROZEN_ROW_S
    with run_stack(setting.folder, row_s=row_s) as stack:
        return kill_everything(stack, seeds=range(setting.seed, setting.seed + seeds), rows=rows, lasts_s=rows * row_s)


def kill_everything(stack: RunStack, *, seeds: range, rows: int, lasts_s: float) -> Verdict:
    """A run per seed; `lasts_s` is what the model needs for its rows."""
    complaints: list[str] = []
    kills = 0
    wanted = write_rows(stack.folder / "in.jsonl", rows)
    warm = stack.rows_run()
    for seed in seeds:
        out = stack.folder / f"out{seed}.jsonl"
        kills += _run_with_kills(stack, out, Random(seed), lasts_s)
        complaints += [f"seed {seed}: {what}" for what in _differences(out, wanted)]
    asked = stack.asker.conclude()
    # A prediction is a row too.
    extra = stack.rows_run() - warm - len(seeds) * rows - asked.asked
    allowed = kills * (_KILL_WINDOW_ROWS + 64)
    complaints += [f"{extra} rows ran twice, {allowed} allowed"] if extra > allowed else []
    notes = f"{len(seeds)} runs of {rows:,} rows, {kills} kills, {extra:,} rows ran twice"
    missing = rows * len(complaints)
    found = verdict("F39", rows=len(seeds) * rows, missing=missing, extra=max(0, extra), complaints=complaints, notes=notes)
    return with_asked(found, asked)


def _run_with_kills(stack: RunStack, out: Path, random: Random, lasts_s: float) -> int:
    """One run, resumed until it is completed; how many kills it took."""
    run = stack.command(MODEL, str(stack.folder / "in.jsonl"), "-o", str(out), "--window-rows", str(_KILL_WINDOW_ROWS))
    run.start()
    kills = 0
    for victim in random.sample(["driver", "worker", "store"], 3):
        time.sleep(0.7 + random.random() * lasts_s * 0.6)
        if victim == "driver":
            _await_first_commit(run, out)
        kills += 1
        if victim == "driver" and run.running:
            run.kill()
            run = _resumed(stack, out)
        elif victim == "worker":
            stack.worker.kill()
            stack.worker.start()
        elif victim == "store":
            stack.server.kill()
            time.sleep(random.random() * 0.3)
            stack.server.start()
    for _ in range(_TRIES):
        # Killed right behind its last step, it has ended well too; to resume it is then a conflict.
        if run.wait(60.0) == 0 or _is_completed(stack, out):
            return kills
        run = _resumed(stack, out)
    raise AssertionError(f"the run over {out} was never completed: {stack.logs()}")


def _await_first_commit(run: Group, out: Path) -> None:
    """Until there is something to go on from: a header and an entry in the journal; or the run has ended."""
    journal = Path(f"{out}.partial") / "journal.jsonl"
    eventually(lambda: not run.running or (journal.exists() and journal.read_bytes().count(b"\n") > 1), timeout_s=60.0)


def _resumed(stack: RunStack, out: Path) -> Group:
    """A new command that goes on with the run that writes `out`; one that had no run yet begins it."""
    known = _run_of(stack, out)
    again = ("resume", known.id) if known else (MODEL, str(stack.folder / "in.jsonl"), "-o", str(out))
    run = stack.command(*again)
    run.start()
    return run


def _is_completed(stack: RunStack, out: Path) -> bool:
    known = _run_of(stack, out)
    return known is not None and known.state is RunState.COMPLETED


def _run_of(stack: RunStack, out: Path) -> Run | None:
    with contextlib.closing(RedisStore(stack.server.url)) as store, contextlib.suppress(StoreUnavailable):
        return next((run for run in RunStore(store).page(limit=100).runs if run.spec.output == str(out)), None)
    return None


@fault("F39-freeze", "SIGSTOP of a run's driver (command, runner) before a commit until another has the run, then SIGCONT")
def driver_frozen(setting: Setting) -> Verdict:
    with run_stack(setting.folder, row_s=_FROZEN_ROW_S) as stack:
        return freeze_drivers(stack, (frozen_command, frozen_runner) * setting.count(1, 5), rows=8_000)


def freeze_drivers(stack: RunStack, drives: Sequence[Drive], *, rows: int) -> Verdict:
    """A run per drive, whose driver freezes; there must be enough rows for two commits and for what comes after them."""
    complaints: list[str] = []
    wanted = write_rows(stack.folder / "in.jsonl", rows)
    warm = stack.rows_run()
    for number, drive in enumerate(drives):
        out = stack.folder / f"frozen{number}.jsonl"
        noticed = [*drive(stack, out), *_differences(out, wanted)]
        complaints += [f"{drive.__name__} {number}: {what}" for what in noticed]
    asked = stack.asker.conclude()
    runs = len(drives)
    extra = stack.rows_run() - warm - runs * rows - asked.asked
    notes = f"{runs} runs of {rows:,} rows, each taken from a driver that woke up again, {extra:,} rows ran twice"
    missing = rows * len(complaints)
    found = verdict("F39-freeze", rows=runs * rows, missing=missing, extra=max(0, extra), complaints=complaints, notes=notes)
    return with_asked(found, asked)


def frozen_command(stack: RunStack, out: Path) -> list[str]:
    frozen = stack.command(MODEL, str(stack.folder / "in.jsonl"), "-o", str(out), "--window-rows", str(_KILL_WINDOW_ROWS))
    frozen.start(**_FREEZES)
    driver = _frozen_driver(stack, out, frozen)
    other = _resumed(stack, out)
    complaints = _thaw_once_taken(stack, out, frozen, driver)
    other.wait(120.0)
    frozen.wait(120.0)
    return complaints


def frozen_runner(stack: RunStack, out: Path) -> list[str]:
    frozen, other = stack.runner(), stack.runner()
    frozen.start(**_FREEZES)
    spec = RunSpec(model=MODEL, input=str(stack.folder / "in.jsonl"), output=str(out), window_rows=_KILL_WINDOW_ROWS)
    with contextlib.closing(RedisStore(stack.server.url)) as store:
        RunStore(store).create(out.stem, spec)
    try:
        driver = _frozen_driver(stack, out, frozen)
        other.start()
        complaints = _thaw_once_taken(stack, out, frozen, driver)
        eventually(lambda: _is_completed(stack, out), timeout_s=120.0)
        return complaints
    finally:
        frozen.stop()
        other.stop()


def _frozen_driver(stack: RunStack, out: Path, frozen: Group) -> str:
    """The driver of the run that writes `out`, once its process stands still."""
    eventually(lambda: psutil.Process(frozen.pid).status() == psutil.STATUS_STOPPED, timeout_s=60.0)
    known = _run_of(stack, out)
    assert known is not None
    return known.driver


def _thaw_once_taken(stack: RunStack, out: Path, frozen: Group, driver: str) -> list[str]:
    def is_taken() -> bool:
        # That takes the rest of a lease: a look every 10 ms, with a connection each, costs more than the run.
        time.sleep(0.1)
        known = _run_of(stack, out)
        return known is not None and known.driver != driver

    eventually(is_taken, timeout_s=60.0)
    early = _has_commit(Path(f"{out}.partial") / "journal.jsonl")
    frozen.signal(signal.SIGCONT)
    return ["the second driver wrote while the first one had the files"] if early else []


def _has_commit(journal: Path) -> bool:
    """Whether a second driver, which gets the time for it, commits while the first one has the files."""
    before, give_up_at = journal.stat().st_size, time.monotonic() + 5.0
    while time.monotonic() < give_up_at:
        # Without a journal the run is published already.
        if not journal.exists() or journal.stat().st_size > before:
            return True
        time.sleep(0.1)
    return False


def _differences(out: Path, wanted: list[object]) -> list[str]:
    if not out.exists():
        return [f"{out.name} was not published"]
    found = outputs(out)
    wrong = sum(one != other for one, other in zip(found, wanted, strict=False)) + abs(len(found) - len(wanted))
    left = [] if not Path(f"{out}.partial").exists() else [f"{out.name}.partial was left behind"]
    manifest = json.loads(Path(f"{out}.manifest.json").read_text())
    left += [] if manifest["counts"]["done"] == len(wanted) else [f"the manifest counts {manifest['counts']}"]
    return left + ([f"{wrong} rows of {out.name} are not what they should be"] if wrong else [])
