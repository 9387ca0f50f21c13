from __future__ import annotations

import shutil
from pathlib import Path

from penstock.workers.devices.topology import numbers, ranges, read_topology
from tests.unit.workers.devices.recorded import machine


def test_hyper_threads_are_one_core_and_cores_know_their_socket_and_node(tmp_path: Path) -> None:
    topology = machine("two_sockets", tmp_path).topology
    assert topology.nodes == {0: tuple(range(16)), 1: tuple(range(16, 32))}
    last = topology.cores[-1]
    assert (last.number, last.siblings, last.node, last.socket) == (31, (31, 63), 1, 1)
    assert (topology.quota, topology.memory_limit_bytes, topology.budget) == (None, None, 32)


def test_the_tightest_group_on_the_way_up_binds(tmp_path: Path) -> None:
    topology = machine("quota", tmp_path).topology
    assert (topology.quota, topology.memory_limit_bytes) == (2.5, 2 << 30)
    assert (len(topology.cores), topology.budget) == (8, 2)


def test_groups_of_version_1_are_read_by_their_controller(tmp_path: Path) -> None:
    topology = machine("legacy_quota", tmp_path).topology
    assert (topology.quota, topology.memory_limit_bytes, topology.budget) == (1.5, 1 << 30, 1)
    assert [core.siblings for core in topology.cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_small_machine_without_node_folders_is_one_node(tmp_path: Path) -> None:
    topology = machine("small_vm", tmp_path).topology
    assert (topology.nodes, topology.quota) == ({0: (0, 1)}, None)


def test_where_no_nodes_are_told_the_sockets_stand_for_them(tmp_path: Path) -> None:
    """Regression: in a container that hides the nodes, two sockets of 16 cores with hyper-threads counted as one node."""
    machine("two_sockets", tmp_path)
    shutil.rmtree(tmp_path / "sys/devices/system/node")
    topology = read_topology(tmp_path)
    assert topology.nodes == {0: tuple(range(16)), 1: tuple(range(16, 32))}
    assert topology.cores[16].siblings == (16, 48)


def test_a_node_that_is_told_stands_however_many_sockets_it_spans(tmp_path: Path) -> None:
    machine("two_sockets", tmp_path)
    shutil.rmtree(tmp_path / "sys/devices/system/node/node1")
    (tmp_path / "sys/devices/system/node/node0/cpulist").write_text("0-63\n")
    assert read_topology(tmp_path).nodes == {0: tuple(range(32))}


def test_a_virtual_machine_whose_cores_are_a_socket_each_is_one_node(tmp_path: Path) -> None:
    machine("small_vm", tmp_path)
    shutil.rmtree(tmp_path / "sys/devices/system/node")
    for number in (0, 1):
        (tmp_path / f"sys/devices/system/cpu/cpu{number}/topology/physical_package_id").write_text(f"{number}\n")
    topology = read_topology(tmp_path)
    assert ([core.socket for core in topology.cores], topology.nodes) == ([0, 1], {0: (0, 1)})


def test_a_core_whose_first_thread_may_not_be_used_is_reached_by_its_second(tmp_path: Path) -> None:
    machine("two_sockets", tmp_path)
    (tmp_path / "proc/self/status").write_text("Cpus_allowed_list:\t1,33-34\n")
    assert [(core.number, core.siblings) for core in read_topology(tmp_path).cores] == [(1, (1, 33)), (34, (34,))]


def test_this_machine_has_a_usable_core() -> None:
    assert read_topology().budget >= 1


def test_sets_are_read_and_written_as_the_kernel_does() -> None:
    assert numbers("0-3,8\n") == [0, 1, 2, 3, 8]
    assert ranges([8, 0, 1, 2, 3]) == "0-3,8"
    assert (numbers(""), ranges([])) == ([], "-")
