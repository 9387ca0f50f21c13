"""What is known of slots that are not there, and what comes for a model."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.backlog import Demand
from penstock.broker.store.registry import KeptTimes
from penstock.extensions.autoscaling.worker.demand import ModelDemand, joined
from penstock.extensions.autoscaling.worker.learned import LearnedSlot, LearnedSlots, memory_of
from penstock.model_spec import SlotDeviceUse, SlotInfo


def slot(model: str = "m", state: str = "ready", **fields: Any) -> SlotInfo:
    return SlotInfo(model, "1", state, **fields)


def test_the_latest_that_was_kept_of_a_version_holds_until_a_slot_shows_more() -> None:
    learned = LearnedSlots()
    learned.recall("m", {"1 | cpu | x | 2": KeptTimes({8: 0.4}, 20.0, 3.0, 700), "1 | cpu | x | 1": KeptTimes({1: 9.0}, 10.0)})
    assert learned.of(("m", "1")) == LearnedSlot(3.0, 700, {8: 0.4})
    assert learned.of(("m", "1")).rate == pytest.approx(20.0)
    learned.note([slot(start_s=5.0, latency_s={}), slot("other", "loading", start_s=1.0)], {})
    assert learned.of(("m", "1")) == LearnedSlot(5.0, 700, {8: 0.4})
    assert learned.of(("other", "1")) == LearnedSlot()


def test_memory_is_that_of_the_largest_process_or_of_a_gpu_that_one_version_has_alone() -> None:
    assert memory_of([slot(memory_bytes=10), slot(memory_bytes=30), slot("n", "loading", memory_bytes=90)]) == {("m", "1"): 30}
    gpu: dict[str, Any] = {"device": "cuda:0", "device_uuid": "GPU-1", "device_use": SlotDeviceUse(80)}
    assert memory_of([slot(**gpu), slot(**gpu)]) == {("m", "1"): 40}
    assert memory_of([slot(**gpu), slot("n", **gpu)]) == {}


def demand(now: float, accepted: int, *, ended: int = 0, waiting: int = 0) -> Demand:
    return Demand(now, accepted, ended, 0, {"1": waiting}, {"1": 4.0} if waiting else {})


def test_arrivals_are_averaged_and_fade() -> None:
    model = ModelDemand()
    for second in range(30):
        model.note(demand(float(second), 20 * second), float(second), batch_size=1)
    assert model.arrivals_per_s == pytest.approx(20.0, rel=0.05)
    for second in range(30, 60):
        model.note(demand(float(second), 580), float(second), batch_size=1)
    assert model.arrivals_per_s < 0.2


def test_a_store_that_came_back_empty_brings_no_arrivals() -> None:
    model = ModelDemand()
    model.note(demand(1.0, 1_000), 1.0, batch_size=1)
    model.note(demand(2.0, 0), 2.0, batch_size=1)
    assert model.arrivals_per_s == 0.0


def test_the_rate_is_that_of_all_slots_and_divided_by_what_each_version_can_do() -> None:
    model = ModelDemand()
    model.note(demand(1.0, 0), 1.0, batch_size=1)
    slots = {"1": [slot(latency_s={1: 0.1})] * 3, "2": [slot(latency_s={1: 0.05})]}
    assert model.rates(slots, 1.0) == {"1": pytest.approx(30.0), "2": pytest.approx(20.0)}
    assert model.rates({"1": []}, 1.0) == {"1": 0.0}


def test_queues_of_one_model_are_one_demand() -> None:
    found = joined([demand(2.0, 5, waiting=3), Demand(1.0, 7, 2, 1, {"1": 1, "2": 4}, {"1": 1.5})])
    assert found == Demand(2.0, 12, 2, 1, {"1": 4, "2": 4}, {"1": 1.5})
