"""A worker ends in time although the links to its store have gone silent, as behind a proxy that forgets idle connections."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.proxy import Proxy
from tests.faults.server import Server
from tests.integration.worker_process import PACED, WorkerProcess

# The second is the worker's own limit, with time for a loaded machine.
GRACE_S, LATE_S = 5.0, 8.0 + 12.0


@pytest.fixture
def link(has_server: None, tmp_path: Path) -> Iterator[Proxy]:
    server = Server(tmp_path / "store", fsync="no")
    server.start()
    link = Proxy(server.port)
    link.start()
    yield link
    link.stop()
    server.stop()


def test_a_worker_whose_links_went_silent_ends_as_ever(link: Proxy, tmp_path: Path) -> None:
    # Regression: Celery waited for ever for an answer on its own link, 100 s after SIGTERM with a grace of 30 s.
    with worker(link, tmp_path) as process:
        process.await_ready()
        link.silence()
        process.send(signal.SIGTERM)
        assert process.exit_code(within_s=GRACE_S + LATE_S) == 0
        assert process.events("fleet_ended")


def test_a_worker_whose_store_went_silent_ends_soon_after_its_grace(link: Proxy, tmp_path: Path) -> None:
    # Regression: as above; and then each part of the end waited for an answer of its own.
    with worker(link, tmp_path) as process:
        process.await_ready()
        link.blackhole()
        process.send(signal.SIGTERM)
        assert process.exit_code(within_s=GRACE_S + LATE_S) == 1
        assert process.events("end_cut_short")


def worker(link: Proxy, folder: Path) -> WorkerProcess:
    models = {"paced": {"source": f"{PACED}:Paced", "warm_up": False}}
    return WorkerProcess(link.url, folder / "w", models, grace_s=GRACE_S, beat_s=0.5, lease_s=3.0)
