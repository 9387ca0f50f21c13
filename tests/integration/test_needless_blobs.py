"""What an end made needless is deleted once the end cannot be undone: on real stores that lag, are away, or have no log.

Regression: inputs were deleted as soon as `finish` was answered, so that a job whose end was undone had none.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.records import BatchStamp, ClaimRequest, Ending, NewJob
from penstock.broker.store.sync import RedisStore
from penstock.embedded.server import EmbeddedServer
from penstock.errors import StoreUnavailable
from penstock.job import JobId, JobState, Payload, new_job_id
from penstock.workers.slot.needless import EVERY_S, NeedlessBlobs
from tests.eventually import eventually
from tests.faults.server import Server
from tests.valkey_cluster import valkey_cluster

QUEUE = "echo"


@pytest.fixture
def opened(has_server: None) -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


class Ends:
    """Jobs with inputs that are blobs, on one store; they end, and their inputs are needless from then on."""

    def __init__(self, store: RedisStore, folder: Path, *, replicas: int = 0) -> None:
        self.store, self.blobs = store, LocalBlobs(folder / "blobs", segments=False)
        self.needless = NeedlessBlobs(self.blobs, store, replicas=replicas)

    def running(self) -> tuple[JobId, str]:
        """A job that is claimed, with its token."""
        id = new_job_id(QUEUE)
        self.blobs.put(f"{id.serial}.in", b"x" * 100_000)
        self.store.submit([NewJob(id=id, version="1", input=Payload("image/png", blob=f"{id.serial}.in"))])
        [job] = self.store.claim(ClaimRequest(QUEUE, "1", "w", id.serial, limit=1)).jobs
        return job.id, job.token

    def end(self, id: JobId, token: str) -> None:
        ending = Ending(id, token, JobState.SUCCEEDED, Payload("application/json", b"1"))
        self.store.finish([ending], worker="w", stamp=BatchStamp("b", 1, "idle"))
        self.add(id)

    def ended(self) -> JobId:
        id, token = self.running()
        self.end(id, token)
        return id

    def add(self, id: JobId) -> None:
        self.needless.add(QUEUE, [(id.serial, f"{id.serial}.in")])

    def look(self) -> None:
        """Ask as late as the worker does."""
        self.needless.run_once(time.monotonic() + EVERY_S)

    def look_until(self, is_seen: Callable[[], bool]) -> None:
        """A disk that syncs once a second is asked more than once."""

        def seen() -> bool:
            self.look()
            return is_seen()

        eventually(seen, timeout_s=30.0)

    def has_input(self, id: JobId) -> bool:
        return self.blobs.local_path(f"{id.serial}.in") is not None


def server(opened: ExitStack, folder: Path, *, fsync: str = "always", **extra: str) -> Server:
    server = Server(folder, fsync=fsync, extra={"repl-diskless-sync-delay": "0", **extra})
    opened.callback(server.stop)
    server.start()
    return server


def opened_store(opened: ExitStack, url: str) -> RedisStore:
    return opened.enter_context(closing(RedisStore(url)))


def test_an_input_goes_once_the_store_has_the_end_on_its_disk(opened: ExitStack, tmp_path: Path) -> None:
    ends = Ends(opened_store(opened, server(opened, tmp_path / "s", fsync="everysec").url), tmp_path)
    id = ends.ended()
    ends.needless.run_once(time.monotonic())
    assert ends.has_input(id), "an end is not asked about before it has an age"
    ends.look_until(lambda: not ends.has_input(id))


def test_an_input_waits_for_a_replica_that_lags_and_goes_once_it_has_the_end(opened: ExitStack, tmp_path: Path) -> None:
    primary = server(opened, tmp_path / "p")
    replica = server(opened, tmp_path / "r", replicaof=f"127.0.0.1 {primary.port}")
    ends = Ends(opened_store(opened, primary.url), tmp_path, replicas=1)
    first = ends.ended()
    ends.look_until(lambda: not ends.has_input(first))
    replica.signal(signal.SIGSTOP)
    id = ends.ended()
    ends.look()
    assert ends.has_input(id)
    replica.signal(signal.SIGCONT)
    ends.look_until(lambda: not ends.has_input(id))


def test_an_end_that_was_undone_keeps_its_input_also_when_the_new_primary_is_asked(opened: ExitStack, tmp_path: Path) -> None:
    ends = Ends(opened_store(opened, server(opened, tmp_path / "s").url), tmp_path)
    undone, _ = ends.running()
    # It ran again and failed, and may be replayed.
    failed, token = ends.running()
    error = Ending(failed, token, JobState.FAILED, error_code="x", error_message="x")
    ends.store.finish([error], worker="w", stamp=BatchStamp("b", 1, "idle"))
    unknown = new_job_id(QUEUE)
    ends.blobs.put(f"{unknown.serial}.in", b"x")
    ended = ends.ended()
    for id in (undone, failed, unknown):
        ends.add(id)
    ends.look_until(lambda: not ends.has_input(ended))
    # The collector of orphans deletes what no record names after an hour.
    assert [ends.has_input(id) for id in (undone, failed, unknown)] == [True] * 3


def test_the_input_of_a_job_that_was_forgotten_or_collected_meanwhile_goes_too(opened: ExitStack, tmp_path: Path) -> None:
    ends = Ends(opened_store(opened, server(opened, tmp_path / "s").url), tmp_path)
    id = ends.ended()
    assert ends.store.forget([id]) == 1
    ends.look_until(lambda: not ends.has_input(id))


def test_a_store_without_a_log_is_asked_for_the_ends_alone_unless_a_replica_must_have_them(
    opened: ExitStack, tmp_path: Path
) -> None:
    store = opened_store(opened, server(opened, tmp_path / "s", appendonly="no").url)
    ends, strict = Ends(store, tmp_path), Ends(store, tmp_path, replicas=1)
    id = ends.ended()
    strict.add(id)
    with pytest.raises(StoreUnavailable, match="cannot wait for its replica"):
        strict.look()
    assert ends.has_input(id)
    ends.look_until(lambda: not ends.has_input(id))


def test_what_waits_stays_in_order_while_the_store_is_away(opened: ExitStack, tmp_path: Path) -> None:
    at = server(opened, tmp_path / "s")
    ends = Ends(opened_store(opened, at.url), tmp_path)
    ids = [ends.ended() for _ in range(3)]
    at.kill()
    with pytest.raises(StoreUnavailable):
        ends.look()
    at.start()
    ends.look_until(lambda: not any(map(ends.has_input, ids)))


def test_the_nodes_of_a_cluster_are_asked_for_their_own_queues(opened: ExitStack, tmp_path: Path) -> None:
    cluster = opened.enter_context(valkey_cluster(tmp_path / "cluster"))
    ends = Ends(opened_store(opened, cluster.url), tmp_path)
    id = ends.ended()
    ends.look_until(lambda: not ends.has_input(id))


def test_a_workers_user_may_ask(opened: ExitStack, tmp_path: Path) -> None:
    embedded = opened.enter_context(EmbeddedServer(tmp_path / "s", users=True))
    opened_store(opened, embedded.url).load_functions()
    ends = Ends(opened_store(opened, embedded.worker_url), tmp_path, replicas=0)
    id = ends.ended()
    ends.look_until(lambda: not ends.has_input(id))
    assert ends.store.safe_ends(QUEUE, [id.serial], replicas=1) is None, "it has no replica"
