"""A client that submits shards straight to the store, with their files where a driver puts them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.records import NewJob, SubmitStatus
from penstock.job import Call, JobId, Payload, Priority, new_job_id
from penstock.shard import SHARD_MEDIA, Shard, ShardOutcome, decode_outcome, encode_shard
from tests.integration.worker_process import JobClient


class ShardClient(JobClient):
    """`folder` is that of the worker which shares its state folder."""

    def __init__(self, url: str, model: str, folder: Path) -> None:
        super().__init__(url, model)
        self.blobs = LocalBlobs(folder / "state" / "blobs")

    def submit_shard(self, rows: Sequence[Any], *, max_crashes: int = 1) -> JobId:
        id = new_job_id(self.model)
        name = f"{id.serial}.in"
        self.blobs.put(name, encode_shard(Shard("application/json", list(rows))))
        job = NewJob(
            id,
            "1",
            Payload(SHARD_MEDIA, blob=name),
            Priority.BULK,
            max_crashes=max_crashes,
            call=Call.SHARD,
        )
        [answer] = self.store.submit([job])
        assert answer.status is SubmitStatus.CREATED
        return id

    def outcome(self, id: JobId) -> ShardOutcome:
        found = self.store.result(id)
        assert found is not None
        payload = found[1]
        assert payload is not None
        return decode_outcome(self.blobs.get(payload.blob) if payload.blob else payload.data)
