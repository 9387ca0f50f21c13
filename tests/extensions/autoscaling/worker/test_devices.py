"""Models that share a device with room for some of them, simulated: how often they are loaded, and that none waits for ever."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from penstock.extensions.autoscaling.worker.devices import CPU, DeviceRoom, PinnedSlot, Wish
from penstock.extensions.autoscaling.worker.learned import LearnedSlot, LearnedSlots
from penstock.extensions.autoscaling.worker.room import LEAST_STAY_S, Key
from penstock.model_spec import Limits, ModelSpec, ScalingPolicy

IDLE = ScalingPolicy(0, 2, goal_s=5.0, idle_unload_s=600.0)
GPU = "GPU-1"


def model(name: str, memory: int | None = 60, scaling: ScalingPolicy | None = IDLE, **fields: Any) -> ModelSpec:
    return ModelSpec(name, f"{name}.py", device_memory_bytes=memory, scaling=scaling, **fields)


def room(*slots: PinnedSlot, budget: int = 100, device: str = CPU, learned: LearnedSlots | None = None) -> DeviceRoom:
    keys = {slot.key for slot in slots}
    return DeviceRoom({device: budget}, learned or LearnedSlots(), slots, dict.fromkeys(keys, 0.0), dict.fromkeys(keys, 0.0))


def answered(found: DeviceRoom, *wishes: Wish, now: float = 100.0) -> Any:
    [device] = found.budgets
    return found.answer(wishes, {wish.key: [device] for wish in wishes}, now)


A, B, C = model("a"), model("b"), model("c")


def test_a_wish_is_granted_where_there_is_room_and_else_another_model_leaves_first() -> None:
    assert answered(room(), Wish(A, 0.0)).granted == [("a", "1")]
    found = answered(room(PinnedSlot(A, CPU)), Wish(B, 0.0))
    assert (found.granted, found.leavers) == ([], {("a", "1"): 1})


def test_room_that_is_made_for_one_is_not_taken_by_another() -> None:
    found = answered(room(PinnedSlot(A, CPU, is_leaving=True)), Wish(A, 50.0), Wish(B, 10.0))
    assert found.granted == [], "a leaves for b, and wants to come back at once"
    found = answered(room(), Wish(A, 50.0), Wish(B, 10.0))
    assert found.granted == [("b", "1")]


def test_a_wish_that_nobody_can_make_room_for_does_not_hold_up_others() -> None:
    fixed = PinnedSlot(model("fixed", 50, None), CPU)
    found = answered(room(fixed), Wish(model("huge", 90), 0.0), Wish(model("small", 40), 10.0))
    assert (found.granted, found.hopeless, found.leavers) == ([("small", "1")], [("huge", "1")], {})


def test_a_model_larger_than_the_device_has_it_for_itself() -> None:
    assert answered(room(), Wish(model("huge", 900), 0.0)).granted == [("huge", "1")]


def test_further_slots_come_only_where_there_is_room() -> None:
    small = model("small", 30)
    assert room(PinnedSlot(small, CPU)).more(small, 5) == 2
    assert room(PinnedSlot(small, CPU)).more(model("unknown", None), 5) == 5


def test_memory_that_was_learned_counts_where_settings_say_none() -> None:
    learned = LearnedSlots()
    learned._known[("a", "1")] = LearnedSlot(memory_bytes=80)
    assert answered(room(PinnedSlot(model("a", None), CPU), learned=learned), Wish(B, 0.0)).leavers == {("a", "1"): 1}
    crowded = room(PinnedSlot(model("a", None), CPU), PinnedSlot(B, CPU), learned=learned)
    assert sum(crowded.overfull(CPU).values()) == 1


def test_models_that_share_no_gpu_follow_one_another_there_whatever_they_take() -> None:
    first, second = model("a", 10, device="cuda"), model("b", 10, device="cuda")
    assert answered(room(PinnedSlot(first, GPU), device=GPU), Wish(second, 0.0)).leavers == {("a", "1"): 1}
    sharers = [replace(one, placement="shared") for one in (first, second)]
    assert answered(room(PinnedSlot(sharers[0], GPU), device=GPU), Wish(sharers[1], 0.0)).granted == [("b", "1")]
    unknown = replace(second, placement="shared", device_memory_bytes=None)
    assert answered(room(PinnedSlot(sharers[0], GPU), device=GPU), Wish(unknown, 0.0)).leavers == {("a", "1"): 1}


@dataclass
class SharedDevice:
    """Models on one device, each with work at all times, second by second. `start_s`: how long each takes to load."""

    specs: list[ModelSpec]
    start_s: float
    now: float = 0.0
    ready_at: dict[Key, float] = field(default_factory=dict)
    wished: dict[Key, float] = field(default_factory=dict)
    loads: list[tuple[float, str]] = field(default_factory=list)
    served_s: dict[str, float] = field(default_factory=dict)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self._second()

    def _second(self) -> None:
        for spec in self.specs:
            key = (spec.name, spec.version)
            if self.ready_at.get(key, math.inf) <= self.now:
                self.served_s[spec.name] = self.served_s.get(spec.name, 0.0) + 1.0
            elif key not in self.ready_at:
                self.wished.setdefault(key, self.now)
        by_key = {(spec.name, spec.version): spec for spec in self.specs}
        slots = [PinnedSlot(by_key[key], CPU, at <= self.now) for key, at in self.ready_at.items()]
        learned = LearnedSlots()
        learned._known = dict.fromkeys(by_key, LearnedSlot(self.start_s))
        used = dict.fromkeys(self.ready_at, self.now)
        found = DeviceRoom({CPU: 100}, learned, slots, self.ready_at, used).answer(
            [Wish(by_key[key], since) for key, since in self.wished.items()], {key: [CPU] for key in by_key}, self.now
        )
        for key in found.leavers:
            del self.ready_at[key]
        for key in found.granted:
            del self.wished[key]
            self.ready_at[key] = self.now + self.start_s
            self.loads.append((self.now, key[0]))

    def most_loads_per_minute(self) -> int:
        moments = [at for at, _ in self.loads]
        return max(sum(start <= at < start + 60.0 for at in moments) for start in moments)


@pytest.mark.parametrize("start_s", [0.5, 2.0, 8.0, 60.0])
def test_two_models_with_room_for_one_cause_at_most_two_loads_per_minute_and_take_turns(start_s: float) -> None:
    device = SharedDevice([A, B], start_s)
    device.run(7_200)
    assert device.most_loads_per_minute() <= 2
    assert device.served_s["a"] == pytest.approx(device.served_s["b"], abs=700.0), "one turn more or less"
    assert sum(device.served_s.values()) > 0.8 * 7_200, "most of the time goes into work"


def test_the_turns_are_short_enough_for_jobs_that_must_end_soon() -> None:
    urgent = [replace(one, limits=Limits(deadline_s=100.0)) for one in (A, B)]
    device = SharedDevice(urgent, start_s=15.0)
    device.run(1_200)
    gaps = [later - before for (before, _), (later, _) in zip(device.loads, device.loads[1:], strict=False)]
    assert max(gaps) < 100.0
    assert min(gaps) > LEAST_STAY_S


def test_of_three_models_with_room_for_one_none_waits_for_ever() -> None:
    device = SharedDevice([A, B, C], start_s=2.0)
    device.run(600)
    assert min(device.served_s.values()) > 150.0
