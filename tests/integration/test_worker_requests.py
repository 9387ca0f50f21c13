"""What a worker tells a handler of each job: from the store's record, through a real child."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.inputs.request import packed
from penstock.job import Call, JobId, Payload, Priority
from penstock.shard import SHARD_MEDIA, Shard, decode_outcome, encode_shard
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess

SOURCE = str(HANDLERS / "given.py")
MODELS: dict[str, dict[str, Any]] = {
    "asked": {"source": f"{SOURCE}:asked", "query": ["language"]},
    "looked": {"source": f"{SOURCE}:Looked", "request_headers": ["x-tenant"]},
    "fileless": {"source": f"{SOURCE}:doubled", "input_urls": True},
    "silent": {"source": f"{SOURCE}:measured", "request_headers": ["x-tenant"]},
}
HEADERS = {"x-tenant": "blue"}


@pytest.fixture(scope="module")
def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(redis_url, tmp_path_factory.mktemp("w"), MODELS) as worker:
        yield worker


@pytest.fixture
def asked(redis_url: str, worker: WorkerProcess) -> Iterator[JobClient]:
    with closing(JobClient(redis_url, "asked")) as client:
        yield client


def submit(client: JobClient, **changes: Any) -> JobId:
    new = replace(client._job(4), owner="team-a", deadline_s=600.0, **changes)
    client.store.submit([new])
    client.await_final([new.id])
    return new.id


def test_a_handler_is_told_of_the_job_its_owner_and_its_time(asked: JobClient) -> None:
    job = submit(asked, priority=Priority.BULK, input=packed(Payload("application/json", b"4"), headers=HEADERS, query={}))
    found = asked.output(job)
    assert found == {"input": 4, "job": str(job), "said": [1, "bulk", "team-a", HEADERS, {}], "has_time": True}


def test_a_large_input_and_the_rows_of_a_run_have_their_facts_too(asked: JobClient, worker: WorkerProcess) -> None:
    large = packed(Payload("application/json", b" " * 100_000 + b"4"), headers=HEADERS, query={})
    name = f"{asked._job(4).id.serial}.in"
    LocalBlobs(worker.log.parent / "state" / "blobs").put(name, large.data)
    assert asked.output(submit(asked, input=Payload(large.content_type, blob=name)))["said"][2:4] == ["team-a", HEADERS]
    rows = submit(asked, call=Call.SHARD, input=Payload(SHARD_MEDIA, encode_shard(Shard("application/json", [1, 2]))))
    found = asked.store.result(rows)
    assert found is not None
    assert found[1] is not None
    outputs = decode_outcome(found[1].data).outputs
    assert [(row["input"], row["job"], row["said"][2]) for row in outputs] == [
        (1, str(rows), "team-a"),
        (2, str(rows), "team-a"),
    ]


def test_a_handler_of_plain_inputs_looks_at_their_requests(redis_url: str, worker: WorkerProcess) -> None:
    with closing(JobClient(redis_url, "looked")) as looked:
        body = packed(Payload("application/json", b"4"), headers=HEADERS, query={})
        # The facts of the first job come when the handler asks, those of the later ones with their batch.
        jobs = [submit(looked, input=body), submit(looked, input=body, priority=Priority.BULK)]
        assert [looked.output(job)["job"] for job in jobs] == list(map(str, jobs))
        said = [looked.output(job)["said"] for job in jobs]
        assert said == [[1, "interactive", "team-a", HEADERS], [1, "bulk", "team-a", HEADERS]]
        rows = submit(looked, call=Call.SHARD, input=Payload(SHARD_MEDIA, encode_shard(Shard("application/json", [1, 2]))))
        found = looked.store.result(rows)
        assert found is not None
        assert found[1] is not None
        outputs = decode_outcome(found[1].data).outputs
        assert [(row["input"], row["job"], row["said"][2]) for row in outputs] == [
            (1, str(rows), "team-a"),
            (2, str(rows), "team-a"),
        ]


def test_settings_that_no_handler_would_follow_are_refused_at_load(worker: WorkerProcess) -> None:
    lines = eventually(lambda: worker.events("child_unloadable", "silent"), timeout_s=60.0)
    assert "request_headers and query name x-tenant" in lines[0]["error"]
    assert "list[penstock.Request[...]]" in lines[0]["error"]
    lines = eventually(lambda: worker.events("child_unloadable", "fileless"), timeout_s=60.0)
    assert "no field of the model's input is a penstock.File" in lines[0]["error"]
