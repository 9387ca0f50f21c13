from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from penstock.broker.blobs.copies import Copies
from penstock.broker.blobs.files import BlobFile, BlobStore, BlobsUnavailable, LocalBlobs
from penstock.broker.blobs.objects import ObjectBlobs
from penstock.broker.records import ClaimedJob
from penstock.job import JobId, Payload, Priority, new_job_id
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.claims import Inputs


def batch_of(*blobs: str) -> Batch:
    """Return a batch with one job per blob name; the job of an empty name carries its input itself."""
    jobs = tuple(
        ClaimedJob(
            job_id(blob), "t", Payload("text/plain", b"" if blob else b"small", blob), Priority.INTERACTIVE, 0.0, 10.0, 1, 0
        )
        for blob in blobs
    )
    return Batch(jobs, "idle", "w", "n", claimed_at=0.0)


def job_id(blob: str) -> JobId:
    return JobId(blob.partition(".")[0], "m") if blob else new_job_id("m")


def large() -> str:
    return f"{new_job_id('m').serial}.in"


@pytest.mark.parametrize("own", [False, True])
def test_small_inputs_travel_large_ones_are_files_and_missing_ones_are_named(tmp_path: Path, own: bool) -> None:
    blobs: BlobStore = ObjectBlobs(MemoryStore(), Copies(tmp_path), location="memory") if own else LocalBlobs(tmp_path)
    there, missing = large(), large()
    blobs.put(there, b"large")
    filled = Inputs(blobs).fill(batch_of(there, "", missing), 0.0)
    assert filled is not None
    batch, without = filled
    first, second = batch.items
    assert (Path(first.path).read_bytes(), first.own, first.data) == (b"large", own, b"")
    assert (second.path, second.own, second.data) == ("", False, b"small")
    assert [job.input.blob for job in batch.jobs] == [there, ""]
    assert [job.input.blob for job in without] == [missing]


class Away(LocalBlobs):
    tries = 0
    away = True

    def readable(self, names: Sequence[str]) -> list[BlobFile | None]:
        self.tries += 1
        if self.away:
            raise BlobsUnavailable("no answer")
        return super().readable(names)


def test_a_batch_whose_inputs_cannot_be_fetched_waits_and_is_tried_ever_more_seldom(tmp_path: Path) -> None:
    blobs, name = Away(tmp_path), large()
    blobs.put(name, b"x")
    inputs, batch = Inputs(blobs), batch_of(name)
    tried_at, now = [], 100.0
    assert inputs.again_at(now) == float("inf")
    while now < 110.0:
        before = blobs.tries
        assert inputs.fill(batch, now) is None
        if blobs.tries > before:
            tried_at.append(now)
        again_at = inputs.again_at(now)
        assert now < again_at <= now + 2.0
        now = again_at
    assert 6 <= len(tried_at) <= 20
    blobs.away = False
    assert inputs.fill(batch, now) is not None
    assert inputs.again_at(now) == float("inf")


def test_a_batch_without_large_inputs_asks_nobody(tmp_path: Path) -> None:
    blobs = Away(tmp_path)
    assert Inputs(blobs).fill(batch_of("", ""), 0.0) is not None
    assert blobs.tries == 0
