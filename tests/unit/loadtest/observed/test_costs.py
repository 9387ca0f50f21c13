from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.loadtest.observed.costs import CpuReading, MachineReading, per_request_us, read_cpu, read_usage, stage_of


@pytest.mark.parametrize(
    ("command", "stage"),
    [
        (["/x/python", "-m", "penstock", "up", "/tmp/worker/penstock.toml"], "parent"),
        (["/x/python", "-m", "penstock", "gateway"], "gateway"),
        (["/x/python", "-m", "penstock", "worker"], "worker"),
        (["/x/python", "-m", "penstock.gateway"], "gateway"),
        (["/x/python", "-m", "penstock.workers", "--pool", "custom"], "worker"),
        (["/x/python", "-m", "penstock.workers.child", "7"], "child"),
        (["/x/valkey-server unixsocket:/tmp/s"], "redis"),
        (["/usr/bin/redis-server", "*:6379"], "redis"),
        (["/x/python", "-m", "feeder.main", "unix:///s", "worker"], "client"),
        (["/x/python", "-m", "feeder.other"], "parent"),
        ([], "parent"),
    ],
)
def test_a_process_is_known_by_its_command_line(command: list[str], stage: str) -> None:
    assert stage_of(command, others={"feeder.main": "client"}) == stage


def test_what_was_spent_before_does_not_count_and_new_processes_do() -> None:
    earlier = CpuReading({("gateway", 1): 2.0, ("child", 2): 1.0})
    later = CpuReading({("gateway", 1): 2.5, ("child", 2): 1.0, ("child", 3): 0.25})
    assert later.since(earlier) == {"gateway": 0.5, "child": 0.25}


def test_costs_are_microseconds_per_request_with_their_sum() -> None:
    assert per_request_us({"gateway": 0.5, "redis": 0.25}, 1_000) == {"gateway": 500.0, "redis": 250.0, "total": 750.0}


def test_this_process_is_the_client_and_a_missing_one_is_left_out() -> None:
    assert list(read_cpu([2**22 - 1]).seconds) == [("client", os.getpid())]


def test_what_a_process_spent_that_has_ended_meanwhile_is_not_taken_for_others() -> None:
    before = read_usage([])
    code = "import time; begun = time.process_time()\nwhile time.process_time() - begun < 0.2: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert read_usage([]).own_s - before.own_s >= 0.2


def test_the_share_of_others_is_what_the_machine_spent_beyond_our_own() -> None:
    earlier, later = MachineReading(10.0, 100.0), MachineReading(14.0, 120.0)
    assert later.foreign_share(earlier, 3.0) == pytest.approx(0.05)
    assert later.foreign_share(earlier, 9.0) == 0.0
