from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from penstock.broker.contract import ReleaseReason
from penstock.broker.records import BatchStamp, ClaimedJob, Ending, GiveBack, Settled
from penstock.job import JobId, JobState, Payload, Priority
from penstock.model_spec import ModelSpec, ProfileInfo, ProfileWish
from penstock.workers.child.batch_profile import FACTS, Facts
from penstock.workers.fleet.profiling import KEPT, Profiler, StageSums, new_folder, stage_table
from penstock.workers.slot.batch import Batch, Release, Retry
from penstock.workers.slot.child.events import Cause

SPEC = ModelSpec("m", "m.py", version="2")
WISH = ProfileWish("w1", "2", until=100.0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Bench:
    """Stands for a slot: claims batches, hands them over and settles them."""

    def __init__(self, root: Path, spec: ModelSpec = SPEC) -> None:
        self.rung = 0
        self.profiler = Profiler(spec, root, on_change=self._ring)
        self._numbers = 0

    def _ring(self) -> None:
        self.rung += 1

    def give(self) -> Batch:
        self._numbers += 1
        id = JobId(f"{self._numbers:026d}", "m")
        job = ClaimedJob(id, "t", Payload("application/json", b"1"), Priority.INTERACTIVE, 10.0, 99.0, 1, 0)
        batch = Batch((job,), "full", "w", f"b{self._numbers}", claimed_at=1.0, leased_at=10.5)
        self.profiler.on_claimed(SPEC, batch)
        return replace(batch, profile_dir=self.profiler.profile_dir(batch))

    def settle(self, batch: Batch, *, kind: str = "python", copy_s: float | None = None) -> None:
        if batch.profile_dir:
            (Path(batch.profile_dir) / FACTS).write_bytes(msgspec.json.encode(Facts(kind, copy_s)))
        stamp = BatchStamp(batch.nonce, 1, "full", 0.002, 0.01, 0.003, batch_wait_s=0.001, decode_s=0.004, device_wait_s=0.005)
        ending = Ending(batch.jobs[0].id, "t", JobState.SUCCEEDED)
        self.profiler.on_settled(SPEC, replace(batch, endings=(ending,), stamp=stamp), [Settled.OK], 0.006)

    def run(self) -> Batch:
        batch = self.give()
        self.settle(batch)
        return batch


def test_items_that_were_claimed_together_and_settled_one_by_one_all_count_their_wait() -> None:
    sums = StageSums()
    jobs = tuple(
        ClaimedJob(JobId(f"{number:026d}", "m"), "t", Payload("text/plain"), Priority.INTERACTIVE, 10.0, 99.0, 1, 0)
        for number in range(2)
    )
    sums.on_claimed(Batch(jobs, "idle", "w", "b", claimed_at=1.0, leased_at=10.5))
    for _ in jobs:
        sums.on_settled(BatchStamp("b", 1, "idle", 0.0, 0.01, 0.0), 0.0)
    assert sums.means_s()["queue"] == pytest.approx(0.5)


def test_nothing_is_recorded_and_nothing_counted_unless_asked_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert not bench.profiler.wants_every_batch
    assert not any(bench.run().profile_dir for _ in range(300))
    assert not list(tmp_path.iterdir())
    assert bench.profiler.info() is None


def test_one_batch_of_so_many_is_recorded_with_its_stages(tmp_path: Path) -> None:
    bench = Bench(tmp_path, replace(SPEC, profile_every=4))
    recorded = [batch for batch in [bench.run() for _ in range(12)] if batch.profile_dir]
    assert [batch.nonce for batch in recorded] == ["b4", "b8", "b12"]
    folder = Path(recorded[1].profile_dir)
    assert folder.parent == tmp_path / "m-2"
    assert folder.name.endswith(f"-{os.getpid()}")
    written = json.loads((folder / "stages.json").read_text())
    assert (written["batches"], written["kind"], written["batch"]) == (4, "python", "b8")
    wanted = {"queue": 0.5, "batch_wait": 0.001, "decode": 0.004, "preprocess": 0.002, "device_wait": 0.005}
    assert written["stages_s"] == pytest.approx({**wanted, "inference": 0.01, "postprocess": 0.003, "settle": 0.006})
    assert "mean of 4 batches" in (folder / "stages.txt").read_text()


def test_a_wish_is_met_once_by_the_next_batch(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.profiler.wish(WISH, now=50.0)
    assert bench.profiler.info() == ProfileInfo("w1", "armed")
    first, second = bench.give(), bench.give()
    assert first.profile_dir
    assert not second.profile_dir
    bench.settle(first, copy_s=0.25)
    info = bench.profiler.info()
    assert info is not None
    assert (info.state, info.batch, info.folder, info.batches) == ("done", "b1", first.profile_dir, 1)
    assert info.stages_s["copy"] == 0.25
    assert bench.rung == 1
    bench.profiler.wish(WISH, now=51.0)
    assert not bench.run().profile_dir


def test_a_wish_for_another_version_or_of_yesterday_arms_nobody(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.profiler.wish(replace(WISH, version="1"), now=50.0)
    bench.profiler.wish(WISH, now=100.0)
    assert bench.profiler.info() is None
    assert not bench.run().profile_dir


def test_what_came_of_a_wish_is_told_until_it_is_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.profiler.wish(WISH, now=50.0)
    bench.run()
    bench.profiler.wish(None, now=60.0)
    assert bench.profiler.info() is not None
    bench.profiler.wish(WISH, now=101.0)
    assert bench.profiler.info() is None


def test_a_recorded_batch_that_crashed_or_was_given_back_leaves_the_wish_for_the_next(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.profiler.wish(WISH, now=50.0)
    batch = bench.give()
    bench.profiler.on_lost(SPEC, Cause.CRASHED, batch)
    batch = bench.give()
    assert batch.profile_dir
    back = GiveBack(batch.jobs[0].id, "t")
    bench.profiler.on_given_back(SPEC, Release((back,), "w", ReleaseReason.DRAIN), [Settled.OK])
    batch = bench.give()
    assert batch.profile_dir
    (Path(batch.profile_dir) / FACTS).write_bytes(msgspec.json.encode(Facts("python")))
    bench.profiler.on_given_back(SPEC, Retry(GiveBack(batch.jobs[0].id, "t"), "w", 1.0, "busy", "later"), [Settled.OK])
    info = bench.profiler.info()
    assert info is not None
    assert info.state == "done"


def test_a_recorded_batch_whose_lease_was_lost_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.profiler.wish(WISH, now=50.0)
    assert bench.give().profile_dir
    assert any(bench.run().profile_dir for _ in range(20))


def test_a_child_that_left_no_word_of_its_recording_costs_a_note(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.profiler.wish(WISH, now=50.0)
    batch = bench.give()
    bench.settle(replace(batch, profile_dir=""))
    info = bench.profiler.info()
    assert info is not None
    assert "left no batch.json" in info.note


def test_a_folder_that_cannot_be_made_is_told_and_costs_the_batch_nothing(tmp_path: Path) -> None:
    (tmp_path / "m-2").write_text("in the way")
    bench = Bench(tmp_path)
    bench.profiler.wish(WISH, now=50.0)
    assert not bench.run().profile_dir
    info = bench.profiler.info()
    assert info is not None
    assert (info.state, bench.rung) == ("failed", 1)


def test_only_the_newest_recordings_stay(tmp_path: Path) -> None:
    made = [new_folder(tmp_path / "m-1", NOON + timedelta(seconds=second)) for second in range(KEPT + 5)]
    assert sorted((tmp_path / "m-1").iterdir()) == made[-KEPT:]
    assert made[0].parent.stat().st_mode & 0o77 == 0


def test_shares_are_of_the_whole_way_and_copying_is_not_added() -> None:
    table = stage_table(ProfileInfo("", batches=1, stages_s={"queue": 0.25, "inference": 0.75, "copy": 0.5}))
    lines = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert lines["queue"] == ["250.000", "25.0%"]
    assert lines["inference"] == ["750.000", "75.0%"]
    assert lines["copy"][0] == "500.000"
    assert lines["settle"] == ["0.000", "0.0%"]
