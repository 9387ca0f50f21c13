"""Chooses the batches of a slot that a profiler records, and writes a table of stages beside each recording.

One recording is a folder `<profile_dir>/<model>-<version>/<UTC time>-<pid>`. It holds the child's trace
(`penstock.workers.child.batch_profile`), and `stages.json` and `stages.txt` over the batches since the last recording.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from penstock.broker.records import BatchStamp, Settled
from penstock.model_spec import ModelSpec, ProfileInfo, ProfileWish
from penstock.workers.child.batch_profile import FACTS, Facts
from penstock.workers.slot.batch import BULK, Batch, Release, Retry
from penstock.workers.slot.child.events import Cause
from penstock.workers.slot.context import Observer

log = structlog.get_logger(__name__)
BATCH_RECORDED = "batch_recorded"
PROFILE_FAILED = "profile_failed"

# The stages of a batch in order. COPY is a part of the recorded batch's inference, or ran beside it, so it is not added up.
STAGES = ("queue", "batch_wait", "decode", "preprocess", "device_wait", "inference", "postprocess", "settle")
COPY = "copy"
KEPT = 20
# Made while one thread loads this module: D106.
_FACTS = msgspec.json.Decoder(Facts)
# A slot holds two batches. If this many were claimed since a recorded one, that one was given up with its lease.
_PATIENCE = 8


class StageSums:
    """Seconds per stage, summed over batches."""

    def __init__(self) -> None:
        self.batches = 0
        self._sums = dict.fromkeys(STAGES, 0.0)
        # By claim: how long its jobs had waited on average, and how many of them have not been settled.
        self._queued: dict[str, tuple[float, int]] = {}

    def on_claimed(self, batch: Batch) -> None:
        waited = sum(max(0.0, batch.leased_at - job.created_at) for job in batch.jobs)
        self._queued[batch.nonce] = waited / max(1, batch.size), batch.size

    def on_settled(self, stamp: BatchStamp, store_s: float) -> None:
        self.batches += 1
        waited, left = self._queued.pop(stamp.id, (0.0, 0))
        self._sums["queue"] += waited
        if left > stamp.size:
            # The items of an async handler are settled one by one.
            self._queued[stamp.id] = waited, left - stamp.size
        for name in ("batch_wait", "decode", "preprocess", "device_wait", "inference", "postprocess"):
            self._sums[name] += getattr(stamp, f"{name}_s")
        self._sums["settle"] += store_s

    def means_s(self) -> dict[str, float]:
        return {name: total / max(1, self.batches) for name, total in self._sums.items()}


class Profiler(Observer):
    """The profiler of one slot. All methods but `wish` and `info` run in the slot's thread."""

    def __init__(self, spec: ModelSpec, root: Path, *, on_change: Callable[[], None]) -> None:
        """`on_change` is called when `info` has something new to say."""
        self._spec = spec
        self._root = root / f"{spec.name}-{spec.version}"
        self._on_change = on_change
        self._claimed = 0
        self._sums = StageSums()
        self._recording: Batch | None = None
        self._asked: ProfileInfo | None = None
        self._until = 0.0

    # In the beat's thread.

    def wish(self, wish: ProfileWish | None, now: float) -> None:
        """Take the wish that the store has now, or none. Each wish is met once. `now` is by the store's clock."""
        mine = wish is not None and wish.version == self._spec.version and now < wish.until
        if not mine or wish is None:
            if self._asked is not None and now >= self._until:
                self._asked = None
        elif self._asked is None or self._asked.wish != wish.id:
            self._asked, self._until = ProfileInfo(wish.id), wish.until

    def info(self) -> ProfileInfo | None:
        return self._asked

    # The choice of a batch.

    @property
    def wants_every_batch(self) -> bool:
        return self._active or self._recording is not None

    def profile_dir(self, batch: Batch) -> str:
        if not self._active:
            return ""
        self._claimed += 1
        if self._recording is not None and self._claimed > _PATIENCE:
            self._recording = None
        if self._recording is not None or not self._due:
            return ""
        self._claimed = 0
        try:
            path = new_folder(self._root, datetime.now(UTC))
        except OSError as error:
            log.warning(PROFILE_FAILED, model=self._spec.name, error=str(error))
            self._answer(replace(self._asked, state="failed", note=str(error)) if self._asked else None)
            return ""
        self._recording = replace(batch, profile_dir=str(path))
        return str(path)

    @property
    def _due(self) -> bool:
        every = self._spec.profile_every
        return self._armed or (every is not None and self._claimed >= every)

    @property
    def _armed(self) -> bool:
        asked = self._asked
        return asked is not None and asked.state == "armed"

    @property
    def _active(self) -> bool:
        return self._spec.profile_every is not None or self._armed

    # The times of batches.

    def on_claimed(self, spec: ModelSpec, batch: Batch) -> None:
        if self._active and not batch.is_shard:
            self._sums.on_claimed(batch)

    def on_settled(self, spec: ModelSpec, batch: Batch, answers: Sequence[Settled], store_s: float) -> None:
        # A shard does not count: it is many batches whose stages overlap.
        if self._active and batch.stamp.reason != BULK:
            self._sums.on_settled(batch.stamp, store_s)
        if self._recording is not None and batch.stamp.id == self._recording.nonce:
            self._report(self._recording)

    def on_given_back(self, spec: ModelSpec, debt: Retry | Release, answers: Sequence[Settled]) -> None:
        recording = self._recording
        if recording is None or not _jobs(debt) & {job.id.serial for job in recording.jobs}:
            return
        if isinstance(debt, Retry):
            # If all jobs of the batch are retried, `settled` is never called for it.
            self._report(recording)
        else:
            self._recording = None

    def on_lost(self, spec: ModelSpec, cause: Cause, batch: Batch) -> None:
        if self._recording is not None and batch.nonce == self._recording.nonce:
            self._recording = None

    def _report(self, batch: Batch) -> None:
        folder, facts = Path(batch.profile_dir), _facts(Path(batch.profile_dir))
        stages = self._sums.means_s() | ({COPY: facts.copy_s} if facts.copy_s is not None else {})
        info = ProfileInfo(
            self._asked.wish if self._asked else "",
            "done",
            batch=batch.nonce,
            folder=str(folder),
            kind=facts.kind,
            note=facts.note,
            batches=self._sums.batches,
            stages_s=stages,
        )
        self._recording, self._sums = None, StageSums()
        try:
            (folder / "stages.json").write_bytes(msgspec.json.encode({**asdict(info), "items": batch.size}))
            (folder / "stages.txt").write_text(stage_table(info))
        except OSError as error:
            log.warning(PROFILE_FAILED, model=self._spec.name, error=str(error))
        log.info(BATCH_RECORDED, model=self._spec.name, batch=batch.nonce, folder=str(folder), kind=facts.kind, note=facts.note)
        self._answer(info if self._armed else None)

    def _answer(self, info: ProfileInfo | None) -> None:
        if info is not None:
            self._asked = info
            self._on_change()


def stage_table(info: ProfileInfo) -> str:
    """A line per stage: its milliseconds, and its share of all stages."""
    total = sum(info.stages_s.get(name, 0.0) for name in STAGES) or 1.0
    lines = [f"{'stage':<12}{'ms':>12}{'share':>8}"]
    lines += [f"{name:<12}{_ms(info.stages_s, name):>12.3f}{info.stages_s.get(name, 0.0) / total:>8.1%}" for name in STAGES]
    if COPY in info.stages_s:
        lines.append(f"{COPY:<12}{_ms(info.stages_s, COPY):>12.3f}          between host and device, in the recorded batch")
    lines.append(f"mean of {info.batches} batch{'' if info.batches == 1 else 'es'}; queue is per job")
    return "\n".join([*lines, ""])


def _ms(stages_s: Mapping[str, float], name: str) -> float:
    return stages_s.get(name, 0.0) * 1e3


def new_folder(root: Path, now: datetime) -> Path:
    """Create a folder for one recording, and delete the oldest, so that there are never more than `KEPT`."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The names begin with the time, so they sort by it.
    for old in sorted(path for path in root.iterdir() if path.is_dir())[: -(KEPT - 1)]:
        shutil.rmtree(old, ignore_errors=True)
    path = root / f"{now:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}"
    path.mkdir(mode=0o700)
    return path


def _facts(folder: Path) -> Facts:
    try:
        return _FACTS.decode((folder / FACTS).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        return Facts("", note=f"the child left no {FACTS}: {error}")


def _jobs(debt: Retry | Release) -> set[str]:
    items = debt.items if isinstance(debt, Release) else [debt.item]
    return {item.id.serial for item in items}
