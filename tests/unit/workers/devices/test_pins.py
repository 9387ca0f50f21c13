from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.model_spec import ModelSpec
from penstock.workers.devices.pins import Pin, check_devices, plan, usable_cores


def spec(name: str = "m", *, workers: int = 1, threads: int | None = None, device: str = "cpu") -> ModelSpec:
    return ModelSpec(name, "m.py", workers=workers, threads=threads, device=device)


def test_a_single_slot_gets_all_cores() -> None:
    assert plan([spec()], [0, 1, 2, 3]) == [[Pin((0, 1, 2, 3), 4)]]


def test_slots_get_equal_shares_side_by_side() -> None:
    assert plan([spec("a", workers=2), spec("b")], [0, 2, 4, 6, 8, 10]) == [
        [Pin((0, 2), 2), Pin((4, 6), 2)],
        [Pin((8, 10), 2)],
    ]


def test_a_model_may_say_how_many_threads_each_slot_gets() -> None:
    assert plan([spec("a", threads=3), spec("b", threads=1)], [0, 1, 2, 3]) == [[Pin((0, 1, 2), 3)], [Pin((3,), 1)]]


def test_more_slots_than_cores_are_not_pinned() -> None:
    assert plan([spec(workers=3)], [0, 1]) == [[Pin((), 1)] * 3]


def test_libraries_are_told_how_many_threads_to_start() -> None:
    assert Pin((0, 1), 2).environment()["OMP_NUM_THREADS"] == "2"


def test_a_device_that_cannot_be_served_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="model m: device 'cuda:0'"):
        check_devices([spec(device="cuda:0")])


def test_this_machine_has_a_usable_core() -> None:
    assert usable_cores()
