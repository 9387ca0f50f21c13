from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.model_spec import ModelSpec
from penstock.workers.devices.machine import Machine
from penstock.workers.devices.pins import Pin
from penstock.workers.devices.plan import plan, plan_beside, plan_one_more, table, unpinned
from penstock.workers.devices.topology import Core, Topology, read_topology
from tests.unit.workers.devices.recorded import machine

GIB = 1 << 30


def spec(name: str = "m", **fields: Any) -> ModelSpec:
    return ModelSpec(name, "m.py", **fields)


def flat(*cores: int) -> Machine:
    """A machine with one node and no GPU."""
    return Machine(Topology(tuple(Core(core, (core,)) for core in cores)))


def shares(machine: Machine, *specs: ModelSpec) -> list[list[tuple[tuple[int, ...], int]]]:
    return [[(pin.cores, pin.threads) for pin in row] for row in plan(specs, machine).rows]


# Cores.


def test_a_single_slot_gets_all_cores() -> None:
    assert shares(flat(0, 1, 2, 3), spec()) == [[((0, 1, 2, 3), 4)]]


def test_slots_get_equal_shares_side_by_side() -> None:
    found = shares(flat(0, 2, 4, 6, 8, 10), spec("a", slots=2), spec("b"))
    assert found == [[((0, 2), 2), ((4, 6), 2)], [((8, 10), 2)]]


def test_a_model_may_say_how_many_threads_each_slot_gets() -> None:
    assert shares(flat(0, 1, 2, 3), spec("a", threads=3), spec("b", threads=1)) == [[((0, 1, 2), 3)], [((3,), 1)]]


def test_what_one_model_wants_leaves_the_rest_to_the_others() -> None:
    assert shares(flat(0, 1, 2, 3), spec("a", threads=1), spec("b")) == [[((0,), 1)], [((1, 2, 3), 3)]]


def test_more_slots_than_cores_are_not_pinned_and_the_plan_says_so() -> None:
    found = plan([spec(slots=3)], flat(0, 1))
    assert found.rows == ((Pin((), 1),) * 3,)
    assert found.advice == ("3 threads on 2 cores: no slot is pinned; use fewer slots or threads.",)


def test_more_threads_than_cores_are_cut_and_the_plan_says_what_was_asked_for() -> None:
    """Regression: the plan said "2 threads on 2 cores: no slot is pinned", which gives no reason."""
    found = plan([spec(threads=64)], flat(0, 1))
    assert found.rows == ((Pin((), 2),),)
    [advice] = found.advice
    assert advice == "64 threads asked for, 2 given on 2 cores: no slot is pinned; use fewer slots or threads."


def test_slots_per_device_are_refused_on_the_cpu_where_they_would_change_nothing() -> None:
    with pytest.raises(ConfigError, match=r"model m: device 'cpu': slots_per_device = 3 .*set slots = 3"):
        plan([spec(slots_per_device=3)], flat(0, 1))


def test_workers_that_share_cores_keep_their_threads_and_leave_the_cores_to_the_system() -> None:
    assert unpinned(plan([spec(slots=2)], flat(0, 1, 2, 3))).rows == ((Pin((), 2),) * 2,)


def test_a_slot_lies_within_one_node_and_idle_cores_are_named(tmp_path: Path) -> None:
    found = plan([spec()], machine("two_sockets", tmp_path))
    assert found.rows == ((Pin(tuple(range(16)), 16, node=0),),)
    assert found.advice == ("16 cores have no slot, for one lies within a NUMA node; raise `slots` to use them.",)


def test_three_slots_on_two_nodes_are_equal_and_none_straddles(tmp_path: Path) -> None:
    [row] = plan([spec(slots=3)], machine("two_sockets", tmp_path)).rows
    assert [(pin.node, len(pin.cores)) for pin in row] == [(0, 8), (0, 8), (1, 8)]
    assert len({core for pin in row for core in pin.cores}) == 24


def test_no_slot_straddles_two_sockets_where_no_nodes_are_told(tmp_path: Path) -> None:
    """Regression: three slots on 2 x 16 cores had 10 cores each, and the second slot was on both sockets."""
    machine("two_sockets", tmp_path)
    shutil.rmtree(tmp_path / "sys/devices/system/node")
    found = plan([spec(slots=3)], Machine(read_topology(tmp_path)))
    assert [pin.node for row in found.rows for pin in row] == [0, 0, 1]
    assert [pin.cores for row in found.rows for pin in row] == [tuple(range(8)), tuple(range(8, 16)), tuple(range(16, 24))]


def test_a_slot_that_wants_more_than_a_node_has_gets_cores_of_both(tmp_path: Path) -> None:
    [[pin]] = plan([spec(threads=24)], machine("two_sockets", tmp_path)).rows
    assert (pin.cores, pin.node) == (tuple(range(24)), None)


def test_two_and_a_half_cores_worth_of_time_are_two_threads(tmp_path: Path) -> None:
    quota = machine("quota", tmp_path)
    assert shares(quota, spec()) == [[((0, 1), 2)]]
    assert shares(quota, spec(slots=2)) == [[((0,), 1), ((1,), 1)]]
    assert shares(quota, spec(slots=3)) == [[((), 1)] * 3]


# Sharing.


def test_models_that_share_get_the_same_cores_and_a_fair_part_of_the_threads() -> None:
    found = plan([spec("a", placement="shared"), spec("b", placement="shared"), spec("c")], flat(0, 1, 2, 3, 4, 5))
    assert [[(pin.cores, pin.threads, pin.placement) for pin in row] for row in found.rows] == [
        [((0, 1, 2, 3), 2, "shared")],
        [((0, 1, 2, 3), 2, "shared")],
        [((4, 5), 2, "dedicated")],
    ]


def test_more_sharers_than_cores_keep_off_the_cores_of_a_dedicated_model() -> None:
    found = shares(flat(0, 1), spec("a", placement="shared", slots=3), spec("b"))
    assert found == [[((0,), 1)] * 3, [((1,), 1)]]


# GPUs.


def test_gpus_go_round_by_free_memory_and_cores_come_from_their_node(tmp_path: Path) -> None:
    [row] = plan([spec(device="cuda", slots=3)], machine("eight_gpus", tmp_path)).rows
    assert [pin.device for pin in row] == ["cuda:3", "cuda:4", "cuda:6"]
    assert [(pin.node, pin.cores[0], pin.threads) for pin in row] == [(0, 0, 8), (1, 16, 8), (1, 24, 8)]


def test_promised_memory_counts_as_taken() -> None:
    with_hints = [spec(name, device="cuda", placement="shared", device_memory_bytes=10 * GIB) for name in "abcd"]
    gpus = [("GPU-a", 40), ("GPU-b", 30)]
    found = plan(with_hints, gpu_machine(gpus))
    assert [row[0].uuid for row in found.rows] == ["GPU-a", "GPU-b", "GPU-a", "GPU-b"]
    with pytest.raises(ConfigError, match=r"come to 10 GiB, and at most 0 B are not promised"):
        plan(
            [spec(str(n), device="cuda", placement="shared", device_memory_bytes=10 * GIB) for n in range(8)], gpu_machine(gpus)
        )


def gpu_machine(gpus: list[tuple[str, int]], *, free: int | None = None) -> Machine:
    from penstock.workers.devices.gpus import Gpu, Gpus, Unit

    found = tuple(
        Gpu(Unit(uuid, "Test GPU", index, total * GIB, (total if free is None else free) * GIB))
        for index, (uuid, total) in enumerate(gpus)
    )
    return Machine(flat(0, 1, 2, 3).topology, Gpus(found))


def test_every_gpu_gets_its_number_of_slots(tmp_path: Path) -> None:
    found = plan([spec(device="cuda:*", slots_per_device=2)], machine("eight_gpus", tmp_path))
    [row] = found.rows
    assert [pin.uuid[:12] for pin in row] == [f"GPU-{index:08x}" for index in (3, 3, 4, 4, 6, 6, 7, 7, 0, 0, 2, 2, 5, 5, 1, 1)]
    assert {pin.threads for pin in row} == {2}
    assert len({core for pin in row for core in pin.cores}) == 32
    assert all(pin.node == (0 if int(pin.device[-1]) < 4 else 1) for pin in row)
    assert len(found.advice) == 8
    assert "start nvidia-cuda-mps-control -d" in found.advice[0]


def test_with_the_daemon_running_nothing_is_to_be_advised(tmp_path: Path) -> None:
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps/control").touch()
    here = machine("eight_gpus", tmp_path / "root", CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "mps"))
    assert here.mps
    assert plan([spec(device="cuda:1", slots_per_device=2)], here).advice == ()


def test_of_a_cut_gpu_the_largest_free_slice_goes_first_one_per_slot(tmp_path: Path) -> None:
    [row] = plan([spec(device="cuda", slots=4)], machine("mig_slices", tmp_path)).rows
    assert [(pin.uuid[:12], pin.device[:12]) for pin in row] == [
        ("MIG-00000001", "MIG-00000001"),
        ("GPU-000000bb", "cuda:1"),
        ("MIG-00000002", "MIG-00000002"),
        ("MIG-00000003", "MIG-00000003"),
    ]
    assert [pin.node for pin in row if pin.uuid.startswith("MIG")] == [1, 1, 1]


def test_a_gpu_or_a_slice_may_be_named_by_its_uuid(tmp_path: Path) -> None:
    names = ["GPU-000000bb-1111-2222-3333-444444444444", "MIG-00000003-aaaa-bbbb-cccc-dddddddddddd"]
    found = plan([spec(name[:3], device=name) for name in names], machine("mig_slices", tmp_path))
    assert [row[0].uuid for row in found.rows] == names


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": "cuda:2"}, r"device 'cuda:2': not there"),
        ({"device": "cuda:0"}, r"MIG is on there: ask for a slice \(MIG-00000001-.*, MIG-00000002-"),
        ({"device": "cuda", "slots": 5}, r"5 devices are wanted, and no further one is free"),
        ({"device": "cuda:1", "slots": 2}, r"set slots_per_device"),
        ({"device": "tpu"}, r'unknown; devices are "cpu", "cuda"'),
        ({"device": "cuda:1", "device_memory_bytes": 16 * GIB}, r"come to 16 GiB, and at most 15 GiB"),
    ],
)
def test_what_cannot_be_used_is_refused_and_what_there_is_is_named(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        plan([spec(**fields)], machine("mig_slices", tmp_path))
    assert "There is: cpu, MIG-00000001" in refused.value.message
    assert "cuda:1 (NVIDIA T4, GPU-000000bb" in refused.value.message


def test_without_a_gpu_the_reason_is_told_and_the_cpu_is_not_taken_instead(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no GPU: NVML says: Driver Not Loaded"):
        plan([spec(device="cuda")], machine("small_vm", tmp_path))


def test_a_dedicated_model_wants_its_gpu_for_itself() -> None:
    one = gpu_machine([("GPU-a", 40)])
    with pytest.raises(ConfigError, match=r'device .cuda:0.: taken by a; set placement = "shared" on all of them'):
        plan([spec("a", device="cuda:0"), spec("b", device="cuda:0", placement="shared")], one)
    both = plan([spec(name, device="cuda:0", placement="shared") for name in "ab"], one)
    assert [row[0].cores for row in both.rows] == [(0, 1, 2, 3)] * 2
    assert [row[0].threads for row in both.rows] == [2, 2]


def test_a_model_that_names_its_gpu_goes_before_one_that_takes_any() -> None:
    found = plan([spec("any", device="cuda"), spec("named", device="cuda:0")], gpu_machine([("GPU-a", 40), ("GPU-b", 30)]))
    assert [row[0].device for row in found.rows] == ["cuda:1", "cuda:0"]


def test_memory_that_another_program_holds_is_told_not_refused() -> None:
    # After a restart, the worker that is replaced still holds memory.
    found = plan([spec(device="cuda:0", device_memory_bytes=10 * GIB)], gpu_machine([("GPU-a", 40)], free=4))
    assert found.advice == ("cuda:0 has 4.0 GiB free, its models want 10.0: another process uses the GPU.",)


def test_the_child_sees_its_own_device_alone() -> None:
    [[gpu], [cpu]] = plan([spec("g", device="cuda"), spec("c")], gpu_machine([("GPU-a", 40)])).rows
    assert gpu.handler_device == "cuda:0"
    assert (gpu.environment()["CUDA_VISIBLE_DEVICES"], gpu.environment()["CUDA_DEVICE_ORDER"]) == ("GPU-a", "PCI_BUS_ID")
    assert (cpu.handler_device, cpu.environment()["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")
    assert cpu.environment()["OMP_NUM_THREADS"] == "2"


# A further slot.


def test_a_further_slot_gets_cores_that_nobody_has() -> None:
    here, model = flat(0, 1, 2, 3), spec(threads=2)
    taken = plan([model], here).pins()
    assert plan_one_more(model, here, taken) == Pin((2, 3), 2, node=0)


def test_a_further_slot_takes_fewer_cores_where_fewer_are_left_and_none_where_none_is() -> None:
    model = spec(threads=2)
    assert plan_one_more(model, flat(0, 1, 2), plan([model], flat(0, 1, 2)).pins()) == Pin((2,), 1, node=0)
    assert plan_one_more(model, flat(0, 1), plan([model], flat(0, 1)).pins()) == Pin((), 2)


def test_a_further_slot_of_a_sharing_model_joins_the_others() -> None:
    models = [spec(name, placement="shared") for name in "ab"]
    here = flat(0, 1, 2, 3)
    taken = plan(models, here).pins()
    assert plan_one_more(models[0], here, taken) == taken[0][1]


def test_a_further_slot_on_gpus_goes_where_there_is_room_or_is_refused(tmp_path: Path) -> None:
    here, model = machine("eight_gpus", tmp_path), spec(device="cuda", slots=8)
    taken = plan([model], here).pins()
    with pytest.raises(ConfigError, match="has 1 slots on each of its devices already"):
        plan_one_more(model, here, taken)
    assert plan_one_more(model, here, taken[:2] + taken[3:]).uuid == taken[2][1].uuid


def test_a_version_that_comes_later_may_stand_on_the_gpu_of_the_one_before() -> None:
    here, first = gpu_machine([("GPU-a", 40)]), spec(device="cuda:0", threads=2)
    taken = plan([first], here).pins()
    assert [(pin.uuid, pin.cores) for pin in plan_beside(replace(first, version="2"), here, taken)] == [("GPU-a", (2, 3))]
    with pytest.raises(ConfigError, match="taken by m"):
        plan_beside(spec("other", device="cuda:0"), here, taken)


def test_a_version_that_comes_later_gets_all_its_slots_on_free_cores_first() -> None:
    here = flat(0, 1, 2, 3)
    taken = plan([spec(threads=1)], here).pins()
    pins = plan_beside(spec(version="2", slots=5, threads=1), here, taken)
    assert [pin.cores for pin in pins] == [(1,), (2,), (3,), (0,), (0,)]


@pytest.mark.parametrize("threads", [None, 2])
def test_a_version_that_comes_later_has_the_cores_and_threads_of_the_one_before_where_none_are_free(
    threads: int | None,
) -> None:
    here, first = flat(0, 1, 2, 3, 4), spec(slots=2, threads=threads)
    taken = plan([first], here).pins()
    assert plan_beside(replace(first, version="2"), here, taken) == [pin for _, pin in taken]


def test_a_version_that_wants_other_threads_than_the_one_before_is_not_put_on_its_cores() -> None:
    here = flat(0, 1)
    taken = plan([spec()], here).pins()
    assert plan_beside(spec(version="2", threads=1), here, taken) == [Pin((), 1)]


def test_where_slots_are_not_pinned_a_later_one_is_not_either() -> None:
    here = flat(0, 1)
    taken = plan([spec(slots=3)], here).pins()
    assert plan_beside(spec(version="2"), here, taken) == [Pin((), 1)]
    assert plan_one_more(spec(), here, taken) == Pin((), 1)


def test_where_pinning_is_switched_off_a_later_version_has_the_threads_of_the_one_before() -> None:
    here = flat(0, 1, 2, 3)
    assert plan_beside(spec(version="2"), here, unpinned(plan([spec()], here)).pins()) == [Pin((), 4)]


def test_the_table_has_a_line_per_slot(tmp_path: Path) -> None:
    lines = table(plan([spec("a", device="cuda:5"), spec("b", slots=2)], machine("eight_gpus", tmp_path)))
    assert lines == [
        ("a", "1", "0", "cuda:5", "NVIDIA H100 80GB HBM3", "1", "16-23", "8", "dedicated"),
        ("b", "1", "0", "cpu", "-", "0", "0-7", "8", "dedicated"),
        ("b", "1", "1", "cpu", "-", "0", "8-15", "8", "dedicated"),
    ]
