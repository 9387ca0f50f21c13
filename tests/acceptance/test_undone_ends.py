"""The end of a job is undone, by a failover or a power cut: the job runs again, and its large input is still there.

Regression: the input was deleted as soon as the store had answered `finish`. A job whose end was undone then ended `failed`,
`input_missing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.broker.store.sync import RedisStore
from penstock.job import JobState, parse_job_id
from tests.acceptance.gateway_process import GatewayClient
from tests.eventually import eventually
from tests.faults.proxy import Proxy
from tests.faults.server import Server
from tests.faults.shims import NoCompiler
from tests.integration.worker_process import PACED, Gate
from tests.stack import Stack

# Above the inline limit, and above what shares a file with other payloads.
PAD = "x" * 3_000_000
AT_ONCE = {"repl-diskless-sync-delay": "0"}
# An end that the disk has already is not undone by a power cut; few cuts come so late.
CUTS = 20


@pytest.fixture(params=["files", "objects"])
def places(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the variables that say where blobs are."""
    if request.param == "files":
        return {}
    url: str = request.getfixturevalue("s3_url")
    environment: dict[str, str] = request.getfixturevalue("s3_environment")
    return {**environment, "PENSTOCK_STORE__BLOB_URL": url}


@pytest.fixture
def opened(has_server: None) -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def started(opened: ExitStack, server: Server) -> Proxy:
    """Start the server, and return a link to it."""
    server.start()
    link = Proxy(server.port)
    link.start()
    opened.callback(link.stop)
    return link


def serving(opened: ExitStack, url: str, folder: Path, env: dict[str, str]) -> Stack:
    stack = opened.enter_context(Stack(folder, {"paced": {"source": PACED}}, store=url, env=env))
    stack.start_worker(lease_s=3.0, beat_s=1.0)
    stack.start_gateway()
    stack.await_ready()
    return stack


def held_job(stack: Stack, gate: Gate, tag: int) -> str:
    """Return a job with a large input, once it runs; it runs until the gate opens."""
    answer = stack.http.post("/v1/models/paced/jobs", json={**gate.held(tag), "pad": PAD})
    assert answer.status_code == 202, answer.text
    eventually(lambda: gate.begun(stack.worker) == 1, timeout_s=60.0)
    return str(answer.json()["id"])


def end_of(http: GatewayClient, job: str) -> tuple[str, object]:
    """Return how the job has ended, with its error, once it has ended."""

    def ended() -> tuple[str, object] | None:
        answer = http.get(f"/v1/jobs/{job}")
        found = answer.json() if answer.status_code == 200 else {}
        return (found["status"], found.get("error")) if found.get("status") in ("succeeded", "failed") else None

    return eventually(ended, timeout_s=60.0)


def is_undone(server: Server, job: str) -> bool:
    """Whether the record on this server says that the job has not ended."""
    store = RedisStore(server.url)
    try:
        record = store.read(parse_job_id(job))
        return record is not None and record.state is JobState.LEASED
    finally:
        store.close()


def test_an_end_that_a_failover_undoes_finds_its_input(opened: ExitStack, tmp_path: Path, places: dict[str, str]) -> None:
    primary = Server(tmp_path / "primary", extra=AT_ONCE)
    opened.callback(primary.stop)
    front, replication = started(opened, primary), Proxy(primary.port)
    replication.start()
    opened.callback(replication.stop)
    replica = Server(tmp_path / "replica", extra={**AT_ONCE, "replicaof": f"127.0.0.1 {replication.port}"})
    opened.callback(replica.stop)
    replica.start()
    with primary.client() as client:
        eventually(lambda: client.set("here", "1") and client.execute_command("WAITAOF", 1, 1, 100) == [1, 1], timeout_s=30.0)
    stack = serving(opened, front.url, tmp_path, {**places, "PENSTOCK_STORE__DURABILITY": "replicated"})
    gate = Gate(tmp_path / "gate")
    job = held_job(stack, gate, 7)
    replication.blackhole()
    gate.open()
    assert end_of(stack.http, job) == ("succeeded", None)
    primary.kill()
    with replica.client() as client:
        client.replicaof("NO", "ONE")
    assert is_undone(replica, job)
    front.target = replica.port
    front.reset()
    assert end_of(stack.http, job) == ("succeeded", None)


def test_an_end_that_a_power_cut_undoes_finds_its_input(opened: ExitStack, tmp_path: Path, places: dict[str, str]) -> None:
    server = Server(tmp_path / "store", fsync="everysec")
    opened.callback(server.stop)
    try:
        server.note_fsyncs(tmp_path)
    except NoCompiler as missing:
        pytest.skip(str(missing))
    front = started(opened, server)
    stack = serving(opened, front.url, tmp_path, places)
    eventually_undone(lambda number: cut_off(stack, server, Gate(tmp_path / f"gate{number}"), number))


def eventually_undone(attempt: Callable[[int], bool]) -> None:
    assert any(attempt(number) for number in range(CUTS)), "no power cut undid an end"


def cut_off(stack: Stack, server: Server, gate: Gate, number: int) -> bool:
    """Let a job end, cut the power, and see it succeed; return whether its end was undone meanwhile."""
    job = held_job(stack, gate, number)
    written = server.log_file.stat().st_size
    # Else the job itself would be undone, as the mode allows.
    eventually(lambda: server.last_fsync().size >= written, timeout_s=30.0)
    gate.open()
    assert end_of(stack.http, job) == ("succeeded", None)
    server.kill()
    server.cut(server.last_fsync().size)
    # Looked at before the worker can run it again.
    with stack.worker.standstill():
        server.start()
        undone = is_undone(server, job)
    assert end_of(stack.http, job) == ("succeeded", None)
    return undone
