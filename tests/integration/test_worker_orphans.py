"""The collector of blobs runs against a real store: a blob that has a record stays."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from penstock.broker.blobs.files import LocalBlobs
from penstock.job import new_serial
from penstock.model_spec import ModelInfo
from penstock.workers.fleet.orphan_blobs import FIRST_AFTER_S, OrphanCollector
from tests.integration.worker_process import JobClient


def test_an_empty_registry_makes_no_job_unknown(fresh_redis: str) -> None:
    with closing(JobClient(fresh_redis, "one")) as client:
        [job] = client.submit(1)
        assert client.store.known([job.serial]) == {job.serial}


def test_the_blob_of_a_job_of_any_model_stays_and_one_without_a_record_goes(fresh_redis: str, tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    with closing(JobClient(fresh_redis, "one")) as one, closing(JobClient(fresh_redis, "two")) as two:
        for model in ("none", "one", "two"):
            one.store.announce_model(ModelInfo(model, "1"))
        serials = [client.submit(1)[0].serial for client in (one, two)]
        assert one.store.known([*serials, new_serial()]) == set(serials)
        names = [f"{serial}.in" for serial in (*serials, new_serial())]
        for name in names:
            blobs.put(name, b"x")
            os.utime(blobs.local_path(name) or tmp_path, (0.0, 0.0))
        collector = OrphanCollector(one.store, blobs)
        collector.run_once(0.0)
        collector.run_once(FIRST_AFTER_S)
    assert {name for name, _ in blobs.names()} == set(names[:2])
