from __future__ import annotations

import pytest

from penstock.loadtest.observed.costs import MachineReading
from penstock.loadtest.observed.processes import ProcessSample, Snapshot, cpu_series, foreign_share, process_use, role_of


def snapshots() -> list[Snapshot]:
    """A worker with half a core and then a whole one, a gateway that starts later, and others with a quarter of two cores."""
    worker = [
        ProcessSample("worker", 1, at, cpu_s, memory)
        for at, cpu_s, memory in ((0.0, 5.0, 100), (1.0, 5.5, 200), (2.0, 6.5, 300))
    ]
    gateway = [ProcessSample("gateway", 2, at, at, 50) for at in (1.0, 2.0)]
    return [
        Snapshot(0.0, MachineReading(10.0, 100.0), {1: worker[0]}, {}),
        Snapshot(1.0, MachineReading(11.0, 102.0), {1: worker[1], 2: gateway[0]}, {}),
        Snapshot(2.0, MachineReading(12.5, 104.0), {1: worker[2], 2: gateway[1]}, {}),
    ]


def test_cpu_is_reported_as_a_share_of_a_core_with_its_peak() -> None:
    gateway, worker = process_use(snapshots())
    assert (gateway.role, gateway.cpu_mean) == ("gateway", 1.0)
    assert (worker.cpu_mean, worker.cpu_max) == (0.75, 1.0)
    assert (worker.memory_mean_bytes, worker.memory_max_bytes) == (200.0, 300.0)


def test_roles_are_reported_second_by_second() -> None:
    assert cpu_series(snapshots()) == {"gateway": [0.0, 1.0], "worker": [0.5, 1.0]}


def test_what_others_took_of_the_machine_is_the_rest() -> None:
    assert foreign_share(snapshots()) == pytest.approx(0.25)
    assert foreign_share([]) == 0.0


def test_processes_have_their_roles_and_strangers_their_names() -> None:
    assert role_of(["python", "-P", "-m", "penstock.gateway"], "python") == "gateway"
    assert role_of(["/x/valkey-server 127.0.0.1:0"], "valkey-server") == "store"
    assert role_of(["python", "-m", "penstock.workers"], "python") == "worker"
    assert role_of(["python", "-m", "penstock.workers.child", "7", "8", "99", "digits"], "python") == "child digits"
    assert role_of(["python", "-P", "-m", "penstock.runs"], "python") == "runner"
    assert role_of(["/x/bin/penstock", "up", "model.py"], "penstock") == "up"
    assert role_of(["python", "-m", "penstock", "up"], "python") == "up"
    assert role_of(["java", "-jar", "serve.jar"], "java") == "java"
