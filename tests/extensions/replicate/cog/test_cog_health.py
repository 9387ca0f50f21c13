from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.broker.backlog import SlotCapacity
from penstock.broker.records import QueueStats
from penstock.extensions.replicate.cog.health import health_view
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.model_spec import ModelInfo, SlotInfo, VersionInfo, WorkerInfo

IDLE = QueueStats("m", 0.0)
LOADED = VersionEntry("1", VersionInfo(), None, SlotCapacity())
NEVER = VersionEntry("1", None, None, SlotCapacity())


def entry(version: VersionEntry = LOADED, *, batch: int = 1) -> ModelEntry:
    info = ModelInfo("m", "1")
    return ModelEntry(replace(info, policy=replace(info.policy, max_batch_size=batch)), version, {"1": version})


def worker(*states: str) -> WorkerInfo:
    slots = tuple(SlotInfo("m", "1", state, error="no such file" if state == "failed" else "") for state in states)
    return WorkerInfo("w", "here", 1, 1_700_000_000.0, slots)


@pytest.mark.parametrize(
    ("states", "stats", "status"),
    [
        (("ready",), IDLE, "READY"),
        (("failed", "loading", "ready"), IDLE, "READY"),
        (("ready", "ready"), replace(IDLE, leased=1), "READY"),
        (("ready", "ready"), replace(IDLE, leased=2), "BUSY"),
        (("ready",), replace(IDLE, ready={0: 1}), "BUSY"),
        (("failed", "loading"), IDLE, "STARTING"),
        (("failed", "failed"), IDLE, "SETUP_FAILED"),
        ((), IDLE, "DEFUNCT"),
        (("ready",), None, "UNHEALTHY"),
    ],
)
def test_the_status_is_that_of_the_best_slot(states: tuple[str, ...], stats: QueueStats | None, status: str) -> None:
    assert health_view(entry(), [worker(*states)], stats)["status"] == status


def test_a_batch_is_as_many_predictions() -> None:
    assert health_view(entry(batch=8), [worker("ready")], replace(IDLE, leased=7))["status"] == "READY"


def test_a_model_that_no_worker_ever_had_is_starting() -> None:
    view = health_view(entry(NEVER), [], IDLE)
    assert view == {"status": "STARTING", "version": view["version"]}


def test_a_setup_that_failed_says_why() -> None:
    setup = health_view(entry(), [worker("failed")], IDLE)["setup"]
    assert setup == {"started_at": "2023-11-14T22:13:20.000Z", "status": "failed", "logs": "no such file"}


def test_slots_of_other_versions_and_models_say_nothing() -> None:
    others = (SlotInfo("m", "2", "ready"), SlotInfo("other", "1", "ready"))
    assert health_view(entry(), [replace(worker(), slots=others)], IDLE)["status"] == "DEFUNCT"
