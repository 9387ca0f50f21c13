from __future__ import annotations

from pathlib import Path

import pytest

from penstock.workers.devices.gpus import PyNvml, explained, read_gpus
from tests.unit.workers.devices.recorded import machine

GIB = 1 << 30


def test_each_gpu_is_known_by_uuid_memory_and_the_node_it_hangs_on(tmp_path: Path) -> None:
    gpus = machine("eight_gpus", tmp_path).gpus
    second = gpus.found[1]
    assert (len(gpus.found), gpus.driver, gpus.absent) == (8, "550.54.15", "")
    assert (second.whole.uuid, second.whole.free_bytes) == ("GPU-00000001-1111-2222-3333-444444444444", 25 * GIB // 2)
    assert (second.mig, second.bus_id) == (False, "00000000:0A:00.0")
    assert [gpu.whole.node for gpu in gpus.found] == [0] * 4 + [1] * 4


def test_of_a_gpu_that_is_cut_only_the_slices_can_be_used(tmp_path: Path) -> None:
    cut, whole = machine("mig_slices", tmp_path).gpus.found
    assert cut.mig
    assert [(unit.uuid[:12], unit.name.split()[-1], unit.node) for unit in cut.units] == [
        ("MIG-00000001", "3g.20gb", 1),
        ("MIG-00000002", "2g.10gb", 1),
        ("MIG-00000003", "1g.5gb", 1),
    ]
    # The kernel assigns this board to no node, and the board does not support MIG.
    assert [(unit.name, unit.node, unit.slice) for unit in whole.units] == [("NVIDIA T4", None, False)]


def test_no_driver_is_no_gpu_with_the_reason(tmp_path: Path) -> None:
    gpus = machine("small_vm", tmp_path).gpus
    assert (gpus.found, gpus.absent) == ((), "NVML says: Driver Not Loaded")


def test_the_real_library_answers_or_says_why_not() -> None:
    gpus = read_gpus(PyNvml())
    assert bool(gpus.found) != bool(gpus.absent)


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        ("2,0", [2, 0]),
        ("GPU-00000007", [7]),
        # CUDA stops at the first device that it does not know.
        ("1,99,2", [1]),
        ("", []),
    ],
)
def test_what_the_worker_itself_may_not_see_is_left_out(variable: str, seen: list[int], tmp_path: Path) -> None:
    gpus = machine("eight_gpus", tmp_path, CUDA_VISIBLE_DEVICES=variable).gpus
    assert [gpu.whole.index for gpu in gpus.found] == seen
    assert ("hides the 8" in gpus.absent) == (not seen)


def test_a_worker_may_be_given_one_slice(tmp_path: Path) -> None:
    slice_uuid = "MIG-00000002-aaaa-bbbb-cccc-dddddddddddd"
    gpus = machine("mig_slices", tmp_path, CUDA_VISIBLE_DEVICES=slice_uuid).gpus
    assert [unit.uuid for unit in gpus.units] == [slice_uuid]


def test_a_container_that_lost_its_gpus_is_told_that_only_a_new_one_helps() -> None:
    assert "only a new container gets them back" in explained("Unknown Error")
    assert explained("Driver/library version mismatch") == "NVML says: Driver/library version mismatch"
