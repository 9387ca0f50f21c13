"""A scaler runs from the beat that first has a version whose slots follow its work, and not in a worker that stops."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.sync import RedisStore
from penstock.extensions.autoscaling.worker.part import ScalingThread
from penstock.model_spec import ModelSpec
from penstock.settings.tables import Settings
from penstock.workers.fleet.parts import WorkerHost

if TYPE_CHECKING:
    from penstock.workers.fleet.size import FleetSize

URL = "redis://127.0.0.1:1"
STORE = RedisStore(URL)


class Sized:
    """The part of `FleetSize` that decides whether a scaler is needed."""

    def __init__(self) -> None:
        self.followed: list[ModelSpec] = []

    def automatic(self) -> list[ModelSpec]:
        return self.followed

    def running(self) -> list[object]:
        return []


def host(size: Sized) -> WorkerHost:
    settings = Settings.load(None, {"PENSTOCK_REDIS_URL": URL})
    return WorkerHost(
        "w",
        settings,
        LocalBlobs(Path("nowhere")),
        CollectorRegistry(),
        queues=list,
        queues_of=lambda model: [model],
        size=lambda: cast("FleetSize", size),
        measured=list,
        workers=list,
        is_holding=lambda: False,
        ended=lambda: 0,
        announce=lambda: None,
    )


def scalers() -> int:
    return sum(thread.name == "scaling" for thread in threading.enumerate())


def test_a_scaler_starts_with_the_first_version_whose_slots_follow_its_work() -> None:
    size = Sized()
    scaling, before = ScalingThread(host(size)), scalers()
    scaling.on_beat(STORE, ())
    assert scalers() == before
    size.followed = [ModelSpec("m", "m.py")]
    scaling.on_beat(STORE, ())
    scaling.on_beat(STORE, ())
    assert scalers() == before + 1
    scaling.drain()
    scaling.stop()
    assert scalers() == before


def test_a_worker_that_stops_starts_no_scaler() -> None:
    size = Sized()
    scaling, before = ScalingThread(host(size)), scalers()
    scaling.drain()
    size.followed = [ModelSpec("m", "m.py")]
    scaling.on_beat(STORE, ())
    assert scalers() == before
    scaling.stop()
