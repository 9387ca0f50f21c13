from __future__ import annotations

from typing import Any

from penstock.gateway.models.views import worker_view
from penstock.model_spec import HostLoad, LearnedCalls, SlotInfo, WorkerInfo

SHOWN = ("device", "device_name", "device_uuid", "cores", "threads", "node", "placement")


def test_a_worker_shows_where_each_slot_lies() -> None:
    place: dict[str, Any] = {
        "device": "cuda:3",
        "device_name": "H100",
        "device_uuid": "GPU-3",
        "threads": 2,
        "node": 0,
        "placement": "shared",
    }
    slots = (SlotInfo("m", "1", "ready", cores=(4, 5), **place), SlotInfo("m", "1", "ready", threads=1))
    gpu, cpu = worker_view(WorkerInfo("w", "h", 1, 0.0, slots=slots))["slots"]
    assert {name: gpu[name] for name in SHOWN} == {**place, "cores": [4, 5]}
    # Fields that do not apply are left out.
    assert {name: cpu[name] for name in SHOWN if name in cpu} == {
        "device": "cpu",
        "cores": [],
        "threads": 1,
        "placement": "dedicated",
    }


def test_a_worker_shows_how_busy_its_machine_is() -> None:
    assert worker_view(WorkerInfo("w", "h", 1, 0.0))["machine"] is None
    assert worker_view(WorkerInfo("w", "h", 1, 0.0, machine=HostLoad(0.5, 1.5, 10, 20)))["machine"] == {
        "cpu_share": 0.5,
        "load_average": 1.5,
        "memory_used_bytes": 10,
        "memory_total_bytes": 20,
    }


def test_a_slot_shows_what_it_has_learned_of_calls() -> None:
    learned = LearnedCalls("padded cost", ((4.0, 0.0015), (256.0, 0.012)), 3.5)
    slot = SlotInfo("m", "1", "ready", calls=learned)
    shown = worker_view(WorkerInfo("w", "h", 1, 0.0, slots=(slot,)))["slots"][0]
    assert shown["calls"] == {"measure": "padded cost", "items_per_call": 3.5, "run_s": {"4": 0.0015, "256": 0.012}}


def test_a_slot_whose_items_overlap_shows_how_many_run_at_once() -> None:
    slots = (SlotInfo("m", "1", "ready", at_once=8), SlotInfo("m", "1", "ready"))
    overlapping, other = worker_view(WorkerInfo("w", "h", 1, 0.0, slots=slots))["slots"]
    assert overlapping["at_once"] == 8
    assert "at_once" not in other
