from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.catalogue import peers_named
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.environments import requirements_mark
from benchmarks.peers.key_figures import ratio
from benchmarks.peers.table import rows
from benchmarks.peers.turn import LoadLengths
from benchmarks.peers.workloads import NOOP, Workload
from penstock.distribution import NAME


def environment_like_ours(folder: Path) -> None:
    """Make Celery's environment as `setup` leaves it, but with the interpreter of the tests."""
    (celery,) = peers_named("celery")
    python = folder / celery.name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / celery.name / "ready").write_text(requirements_mark(celery))


def test_servers_are_started_checked_loaded_and_ended_and_one_that_is_not_set_up_has_its_reason(tmp_path: Path) -> None:
    environment_like_ours(tmp_path)
    lengths = LoadLengths(warm_s=0.1, busy_s=0.3, lone_s=0.1, open_s=0.2)
    small = Workload(NOOP, "no-op", (32,), 1, open_rate=20.0)
    comparison = Comparison(tmp_path, peers_named("penstock,celery,mosec"), [small], lengths, print)
    comparison.run(1)
    result = comparison.result(1)
    assert result["failed"] == []
    assert set(result["peers"]) == {"penstock", "celery"}
    assert "setup mosec" in result["absent"]["mosec"]
    measured = [line["workloads"][NOOP] for line in result["peers"].values()]
    assert all(found["rps"] > 0 and found["cpu_us"] > 0 and found["memory_mib"] > 0 for found in measured)
    assert result["cpu_us_per_noop"] > 0
    installed = {"penstock": version(NAME), "celery": version("celery")}
    assert {name: line["version"] for name, line in result["peers"].items()} == installed
    assert ratio(result, "celery", NOOP)
    assert len(rows(result, NOOP)) == 2


def test_a_server_that_ends_by_itself_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    environment_like_ours(tmp_path)
    python = tmp_path / "celery" / "bin" / "python"
    python.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    comparison = Comparison(tmp_path, peers_named("celery"), [Workload(NOOP, "no-op", (32,), 1)], LoadLengths(), print)
    comparison.run(2)
    (failed,) = comparison.result(2)["failed"]
    assert "ended by itself with 3" in failed["reason"]
    assert "no such module" in failed["reason"]
