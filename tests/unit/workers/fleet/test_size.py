"""How many slots a worker has, on recorded machines; a list stands in for the threads of the slots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from penstock.model_spec import ModelSpec
from penstock.rollout import SETTLED_AFTER_S, Rollout
from penstock.settings.tables import Settings
from penstock.workers.devices.machine import Machine
from penstock.workers.devices.pins import Pin
from penstock.workers.devices.topology import Core, Topology
from penstock.workers.fleet.rollouts import Key, key_of
from penstock.workers.fleet.roster import Roster
from penstock.workers.fleet.size import FleetSize
from penstock.workers.fleet.versions import ServedVersions
from tests.unit.workers.devices.recorded import machine


class Places:
    """The part of a roster that `FleetSize` uses: which version has a slot where."""

    def __init__(self) -> None:
        self.held: list[tuple[ModelSpec, Pin]] = []

    def add(self, spec: ModelSpec, pin: Pin) -> None:
        self.held.append((spec, pin))

    def remove_one(self, spec: ModelSpec) -> None:
        self.held.remove(next(one for one in reversed(self.held) if key_of(one[0]) == key_of(spec)))

    def remove_all(self, key: Key) -> None:
        self.held = [one for one in self.held if key_of(one[0]) != key]

    def count(self, spec: ModelSpec) -> int:
        return sum(key_of(one) == key_of(spec) for one, _ in self.held)

    def taken(self) -> list[tuple[ModelSpec, Pin]]:
        return self.held


class SizedWorker:
    """A worker's versions and its size, without processes. `change` is what a beat does."""

    def __init__(self, settings: Settings, found: Machine, rollout: Rollout | None = None) -> None:
        self.places = Places()
        self.versions = ServedVersions(settings)
        self.size = FleetSize(settings, self.versions, cast("Roster", self.places), lambda specs: found)
        self.waiting = 0
        self.size.start(self.versions.follow({"m": rollout} if rollout else {}, self._count_waiting, now=0.0))

    def _count_waiting(self, model: str, version: str) -> int:
        return self.waiting

    def change(self, rollout: Rollout | None, *, now: float = 0.0) -> None:
        self.size.follow(self.versions.follow({"m": rollout} if rollout else {}, self._count_waiting, now=now))

    def slots(self, model: str = "m") -> list[str]:
        return [spec.version for spec, _ in self.places.held if spec.name == model]

    def threads(self) -> list[int]:
        return [pin.threads for _, pin in self.places.held]


def flat(cores: int) -> Machine:
    return Machine(Topology(tuple(Core(core, (core,)) for core in range(cores))))


Written = Callable[[str], Settings]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(models: str) -> Settings:
        for name in ("one.py", "two.py"):
            (tmp_path / name).touch()
        config = tmp_path / "penstock.toml"
        config.write_text(f'[worker]\nmodel_dir = "."\n{models}')
        return Settings.load(config, {})

    return write


ONE = '[models.m]\nsource = "one.py"\n'
OTHER = '[models.other]\nsource = "two.py"\n'
GPU = '[models.m]\nsource = "one.py"\ndevice = "cuda"\nslots = 2\ndevice_memory_bytes = 60_000_000_000\n'


def test_a_version_gets_the_slots_that_an_operator_asked_for_and_gives_them_back(written: Written) -> None:
    worker = SizedWorker(written(ONE), flat(4))
    worker.change(Rollout().scaled("1", 3))
    assert worker.slots() == ["1"] * 3
    assert worker.size.wanted() == {"m": {"1": 3}}
    worker.change(Rollout().scaled("1", 0))
    assert worker.slots() == []
    assert worker.size.wanted() == {"m": {"1": 0}}
    worker.change(None)
    assert worker.slots() == ["1"], "without the record, the settings say it again"
    assert worker.size.wanted() == {"m": {"1": 1}}


def test_a_model_that_is_scaled_to_none_paused_or_unloaded_is_to_take_no_jobs(written: Written) -> None:
    worker = SizedWorker(written(ONE + OTHER), flat(4))
    assert worker.size.serving() == {"m": 1, "other": 1}
    for off in (Rollout().scaled("1", 0), Rollout().pause(is_paused=True), Rollout().unload("1", 0.0)):
        worker.change(off)
        worker.versions.pause(is_drained=False)
        assert worker.size.serving() == {"m": 0, "other": 1}
    worker.versions.pause(is_drained=True)
    assert worker.size.serving() == {"m": 0, "other": 0}


def test_a_worker_that_starts_has_the_number_at_once_and_loads_no_model_that_is_off(written: Written) -> None:
    assert SizedWorker(written(ONE), flat(4), Rollout().scaled("1", 2)).slots() == ["1", "1"]
    assert SizedWorker(written(ONE), flat(4), Rollout().scaled("1", 0)).slots() == []
    unloaded = Rollout().unload("1", -SETTLED_AFTER_S)
    assert SizedWorker(written(ONE), flat(4), unloaded).slots() == []


def test_a_version_loaded_with_a_number_gets_it(written: Written) -> None:
    worker = SizedWorker(written(ONE), flat(4))
    loaded = Rollout().load("2", {"source": "two.py"})
    worker.change(loaded.scaled("2", 0))
    assert worker.slots() == ["1"]
    worker.change(loaded.scaled("2", 2))
    assert worker.slots() == ["1", "2", "2"]


def test_a_slot_that_comes_back_has_as_many_threads_as_before(written: Written) -> None:
    worker = SizedWorker(written(ONE), flat(4))
    assert worker.threads() == [4]
    worker.change(Rollout().scaled("1", 0))
    worker.change(Rollout().scaled("1", 1))
    assert worker.threads() == [4]


def test_a_removed_version_that_was_off_gets_a_slot_for_its_waiting_jobs_and_loses_it(written: Written) -> None:
    worker = SizedWorker(written(ONE), flat(4), Rollout().scaled("1", 0))
    worker.waiting = 3
    gone = Rollout().scaled("1", 0).unload("1", 0.0)
    worker.change(gone, now=100.0)
    assert worker.slots() == ["1"]
    assert worker.size.wanted() == {}, "no new jobs come, so nobody waits for slots"
    worker.waiting = 0
    worker.change(gone, now=100.0)
    assert worker.slots() == []


def test_remote_control_leaves_a_version_alone_that_an_operator_scaled(written: Written) -> None:
    worker = SizedWorker(written(ONE + OTHER), flat(4))
    worker.change(Rollout().scaled("1", 2))
    assert worker.size.grow(2) == 2
    assert (worker.slots(), worker.slots("other")) == (["1", "1"], ["1"] * 3)
    worker.change(Rollout().scaled("1", 2))
    assert (worker.slots(), worker.slots("other")) == (["1", "1"], ["1"] * 3), "a beat undoes nothing"
    assert worker.size.shrink(5) == 2
    assert (worker.slots(), worker.slots("other")) == (["1", "1"], ["1"]), "each model keeps its last slot"


def test_remote_control_adds_nothing_where_every_version_is_scaled(written: Written) -> None:
    worker = SizedWorker(written(ONE), flat(4), Rollout().scaled("1", 0))
    assert (worker.size.grow(1), worker.size.shrink(1), worker.slots()) == (0, 0, [])


def test_a_device_without_room_refuses_a_slot_with_its_reason_and_keeps_the_others(written: Written, tmp_path: Path) -> None:
    worker = SizedWorker(written(GPU), machine("eight_gpus", tmp_path / "root"))
    assert worker.slots() == ["1", "1"]
    worker.change(Rollout().scaled("1", 9))
    assert worker.slots() == ["1"] * 8
    assert worker.size.wanted() == {"m": {"1": 9}}
    assert "8 of 9 slots have a place" in worker.versions.refused["m", "1"]
    worker.change(Rollout().scaled("1", 1))
    assert worker.slots() == ["1"]
    assert worker.versions.refused == {}


def test_slots_on_devices_go_back_to_what_the_settings_say(written: Written, tmp_path: Path) -> None:
    found = machine("eight_gpus", tmp_path / "root")
    worker = SizedWorker(written(GPU), found, Rollout().scaled("1", 1))
    assert worker.slots() == ["1"]
    worker.change(None)
    assert worker.slots() == ["1", "1"]
    every = SizedWorker(written(GPU.replace('"cuda"\nslots = 2', '"cuda:*"')), found, Rollout().scaled("1", 0))
    every.change(None)
    assert every.slots() == ["1"] * 8


AUTO = ONE + "max_slots = 4\n"
IDLE = "idle_unload_s = 60.0\ndevice_memory_bytes = 600\n"


def test_a_version_with_bounds_starts_with_its_least_on_cores_that_are_shared_out_for_its_most(written: Written) -> None:
    worker = SizedWorker(written(AUTO), flat(8))
    assert (worker.slots(), worker.threads()) == (["1"], [2])
    [spec] = worker.size.automatic()
    assert worker.size.steer(spec, 4) == ""
    assert (worker.slots(), worker.threads()) == (["1"] * 4, [2] * 4)
    worker.change(None)
    assert (worker.slots(), worker.size.wanted()) == (["1"] * 4, {"m": {"1": 4}}), "a beat undoes nothing"
    worker.size.steer(spec, 0)
    worker.size.steer(spec, 2)
    assert worker.threads() == [2, 2]


def test_an_operators_number_stands_over_the_work_and_given_back_the_work_goes_on_from_there(written: Written) -> None:
    worker = SizedWorker(written(AUTO), flat(8))
    [spec] = worker.size.automatic()
    worker.size.steer(spec, 2)
    scaled = Rollout().scaled("1", 6)
    worker.change(scaled)
    assert (worker.slots(), worker.size.automatic()) == (["1"] * 6, [])
    worker.size.steer(spec, 1)
    assert worker.slots() == ["1"] * 6, "a decision that came too late"
    worker.change(scaled.released("1"))
    assert (worker.slots(), len(worker.size.automatic())) == (["1"] * 4, 1)


def test_remote_control_never_takes_the_last_slot_of_a_model_and_passes_over_those_that_follow_their_work(
    written: Written,
) -> None:
    worker = SizedWorker(written(AUTO + OTHER), flat(8))
    [spec] = worker.size.automatic()
    worker.size.steer(spec, 3)
    assert (worker.size.shrink(9), worker.slots("other"), len(worker.slots())) == (0, ["1"], 3)
    assert worker.size.grow(1) == 1
    assert (worker.slots("other"), len(worker.slots())) == (["1"] * 2, 3)


def test_models_that_may_be_unloaded_start_only_as_far_as_there_is_memory(written: Written) -> None:
    memory = "memory_bytes = 1000\n"
    worker = SizedWorker(written(memory + ONE + IDLE + OTHER + IDLE), flat(4))
    assert (worker.slots(), worker.slots("other")) == (["1"], [])
    assert SizedWorker(written(memory + ONE + OTHER + "device_memory_bytes = 9000\n"), flat(4)).slots("other") == ["1"]


def test_of_two_models_for_one_gpu_that_may_be_unloaded_the_second_waits_for_its_turn(written: Written, tmp_path: Path) -> None:
    gpu = 'device = "cuda"\nidle_unload_s = 60.0\n'
    worker = SizedWorker(written(ONE + gpu + OTHER + gpu), machine("eight_gpus", tmp_path, CUDA_VISIBLE_DEVICES="0"))
    assert worker.slots() == worker.slots("other") == []
    worker.change(None)
    assert (worker.slots(), worker.slots("other")) == (["1"], [])
    assert worker.versions.refused == {}
    first, second = worker.size.automatic()
    worker.size.steer(first, 0)
    assert worker.size.steer(second, 1) == ""
    assert (worker.slots(), worker.slots("other")) == ([], ["1"])
