"""A plain install of penstock contains every package that its processes import."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ENTRIES = (
    "penstock.cli.serve.up",
    "penstock.cli.jobs.call",
    "penstock.cli.ops.doctor",
    "penstock.gateway.serving",
    "penstock.runs.runner",
    "penstock.workers.__main__",
    "penstock.workers.bootstep.program",
    "penstock.workers.child.__main__",
    "penstock.broker.celery_app",
    "penstock.handlers.load",
    "penstock.client.aio",
    # Celery loads this module by name when a worker connects.
    "kombu.transport.redis",
)
PROGRAM = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"{name} is not among the declared dependencies", name=name)

REFUSED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Refuse())
for entry in sys.argv[2:]:
    __import__(entry)
"""


def _declared() -> set[str]:
    """Return the distributions that `pip install penstock` installs, without the extras of penstock."""
    found: set[str] = set()
    with (ROOT / "pyproject.toml").open("rb") as file:
        waiting = [Requirement(line) for line in tomllib.load(file)["project"]["dependencies"]]
    done: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in done or not _applies(wanted, set()):
            continue
        done.add(str(wanted))
        found.add(canonicalize_name(wanted.name))
        waiting += [Requirement(str(need).partition(";")[0]) for need in _needs(wanted)]
    return found


def _needs(wanted: Requirement) -> list[Requirement]:
    try:
        listed = distribution(wanted.name).requires or []
    except PackageNotFoundError:
        return []
    return [need for need in map(Requirement, listed) if _applies(need, wanted.extras)]


def _applies(need: Requirement, extras: set[str]) -> bool:
    return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""})


def test_the_processes_import_nothing_that_a_plain_install_lacks() -> None:
    # Regression: kombu's Redis transport imports `packaging`, which only its extra declares, so the worker of a plain install
    # did not start. No test noticed, because the test tools install `packaging`.
    declared = _declared()
    refused = [
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & {*declared, "penstock"}
    ]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(refused), *ENTRIES], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-1_500:]
    assert "pytest" in refused
