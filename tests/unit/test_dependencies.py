"""An install contains every package that its processes import; without extras it is the client and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from penstock.cli.entry import SERVER_VERBS
from penstock.cli.verbs import ENGINE, Verbs, verbs
from penstock.distribution import MODULES, NAME
from tests.refusing import refusing

ROOT = Path(__file__).parents[2]
# More would be a burden on the application that the client is installed into.
MOST_OF_THE_CLIENT = 10
SERVER = (
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
# What an application imports that calls models, and what a person imports to write one.
CLIENT = "penstock.client.sync", "penstock.client.aio", "penstock.handlers.decorator", "penstock.extensions.pipelines.declared"


def _declared(*extras: str) -> set[str]:
    """Return the distributions that pip installs for these extras of ours, ourselves among them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    found, done = {NAME}, set[str]()
    waiting = [Requirement(line) for line in lines]
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in done or not _applies(wanted, set()):
            continue
        done.add(str(wanted))
        if wanted.name == NAME:
            own = (line for extra in wanted.extras for line in project["optional-dependencies"][extra])
            waiting += map(Requirement, own)
            continue
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


def _not_of(*extras: str) -> list[str]:
    """Return the modules that this environment has and an install with these extras lacks."""
    declared = _declared(*extras)
    return [
        module
        for module, owners in packages_distributions().items()
        if module != "penstock" and not {canonicalize_name(owner) for owner in owners} & declared
    ]


def _modules(table: Verbs) -> set[str]:
    return {verb.part.partition(":")[0] for verb in table.values()}


@pytest.mark.parametrize(
    ("extras", "entries"),
    [
        ((), CLIENT),
        # The verb of an extension is loaded first, and says then what it lacks.
        (("cli",), _modules({name: verb for name, verb in ENGINE.items() if name not in SERVER_VERBS})),
        (("serve",), {*SERVER, *_modules(verbs())}),
    ],
    ids=["client", "cli", "serve"],
)
def test_an_install_has_what_its_processes_import(extras: tuple[str, ...], entries: Iterable[str]) -> None:
    # Regression: kombu's Redis transport imports `packaging`, which only its extra declares, so the worker of a plain install
    # did not start. No test noticed, because the test tools install `packaging`.
    refused = _not_of(*extras)
    program = f"for entry in {[*entries]!r}: __import__(entry)"
    run = subprocess.run([sys.executable, "-c", refusing(refused, program)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-1_500:]
    assert "pytest" in refused


def test_the_client_alone_is_ten_packages() -> None:
    found = _declared()
    assert len(found) <= MOST_OF_THE_CLIENT, sorted(found)


def test_the_command_knows_which_modules_its_extras_bring() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for extra, modules in MODULES.items():
        required = [need for need in map(Requirement, extras[extra]) if need.marker is None and need.name != NAME]
        assert {need.name.replace("-", "_") for need in required} == set(modules)
