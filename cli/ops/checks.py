"""The checks of `penstock doctor`. Each returns one finding and never raises for a fault."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from penstock.cli.exits import StartError
from penstock.cli.models.devices import cores_line
from penstock.cli.serve import setup
from penstock.cli.serve.model_files import missing_of_sources, missing_requirements, model_file_faults, not_here
from penstock.cli.state import check_readiness
from penstock.distribution import install_hint
from penstock.errors import ConfigError
from penstock.handlers.runtimes.extras import missing_extras
from penstock.running_stack import running_stack
from penstock.settings.keys import local_url
from penstock.settings.layers import source_file
from penstock.settings.tables import Settings
from penstock.workers.devices.assign import available_devices, is_on_cpu
from penstock.workers.devices.machine import Machine, discover
from penstock.workers.devices.plan import plan as pinned
from penstock.workers.devices.topology import read_topology

LOW_DISK_BYTES = 1024**3


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """`next`: the command or setting that helps; empty if none is needed."""

    name: str
    level: Level
    text: str
    next: str = ""


def findings(settings: Settings) -> list[Finding]:
    machine = discover()
    checks: list[Callable[[], Finding]] = [
        python,
        cores,
        lambda: gpus(settings, machine),
        lambda: pinning(settings, machine),
        lambda: onnxruntime(_version),
        torch,
        lambda: disk(settings.store.state_dir),
        lambda: port(settings),
        lambda: models(settings),
        lambda: runtimes(settings, _version),
        lambda: packages(settings),
    ]
    before, after = checks[:4], checks[4:]
    return [*(check() for check in before), *stores(settings), *(check() for check in after)]


def python() -> Finding:
    # An older Python cannot import this module.
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding("python", Level.OK, text)


def cores() -> Finding:
    """Physical cores that this process may use, and the container's quota, which the core list does not show."""
    topology = read_topology()
    if topology.quota and topology.quota < 1:
        return Finding("cores", Level.WARN, cores_line(topology), "give the container at least one whole core (cpus: 1)")
    return Finding("cores", Level.OK, cores_line(topology))


def gpus(settings: Settings, machine: Machine) -> Finding:
    """A missing GPU is a fault only if a model asks for one."""
    units = machine.gpus
    if units.units:
        return Finding(
            "gpus", Level.OK, f"driver {units.driver}. {available_devices(units)}" + (" MPS runs." if machine.mps else "")
        )
    wanted = [spec.name for spec in settings.specs() if not is_on_cpu(spec)]
    return Finding("gpus", Level.WARN if wanted else Level.OK, f"none: {units.absent or 'MIG is on, and no slice exists'}")


def pinning(settings: Settings, machine: Machine) -> Finding:
    try:
        plan = pinned(settings.specs(), machine)
    except ConfigError as error:
        return Finding("pinning", Level.FAIL, error.message, "penstock doctor --devices")
    slots = len(plan.pins())
    pinned_slots = sum(bool(pin.cores) for _, pin in plan.pins())
    text = f"{pinned_slots} of {slots} slots are pinned" if slots else "no model, no slots"
    return Finding("pinning", Level.OK, "; ".join([text, *plan.advice]))


def stores(settings: Settings) -> list[Finding]:
    from penstock.cli.ops.store_check import celery_off, embedded, reachable

    stack = running_stack(settings.store.state_dir)
    url = settings.store.url or (stack.redis_url if stack else None)
    main = reachable(url, settings.store) if url else embedded()
    off = celery_off(settings.store)
    return [main, off] if off else [main]


def onnxruntime(installed: Callable[[str], str | None]) -> Finding:
    plain, gpu = installed("onnxruntime"), installed("onnxruntime-gpu")
    if plain and gpu:
        return Finding(
            "onnxruntime",
            Level.FAIL,
            f"onnxruntime {plain} and onnxruntime-gpu {gpu} are both installed and overwrite each other",
            f"pip uninstall -y onnxruntime onnxruntime-gpu && {install_hint('onnx-gpu')}",
        )
    if plain or gpu:
        return Finding("onnxruntime", Level.OK, f"onnxruntime{'-gpu' if gpu else ''} {plain or gpu}")
    return Finding("onnxruntime", Level.OK, f"not installed; needed for *.onnx models only: {install_hint('onnx')}")


def torch() -> Finding:
    torch_version = _version("torch")
    return Finding(
        "torch", Level.OK, f"torch {torch_version}" if torch_version else "not installed; needed for torch models only"
    )


def disk(state_dir: Path) -> Finding:
    folder = next(parent for parent in (state_dir, *state_dir.parents) if parent.exists())
    free = shutil.disk_usage(folder).free
    text = f"{free / 1024**3:.1f} GiB free at {state_dir}"
    if not os.access(folder, os.W_OK):
        return Finding("disk", Level.FAIL, f"{folder} cannot be written to", "choose another folder with --state-dir")
    if free < LOW_DISK_BYTES:
        return Finding("disk", Level.WARN, text, "free some space, or choose another folder with --state-dir")
    return Finding("disk", Level.OK, text)


def port(settings: Settings) -> Finding:
    host, number = settings.gateway.host, settings.gateway.port
    url = local_url(host, number)
    try:
        setup.free_port(host, number)
    except StartError as taken:
        # Only a gateway answers the readiness check; another program on the port does not.
        seen = check_readiness(url)
        if seen.ready:
            return Finding("port", Level.OK, f"a gateway is ready at {url}")
        return Finding("port", Level.WARN, f"{taken.message} ({seen.why or 'not a ready gateway'})", taken.hint or "")
    return Finding("port", Level.OK, f"{host}:{number} is free")


def models(settings: Settings) -> Finding:
    if not settings.models:
        return Finding("models", Level.OK, "none is declared here; name one to `penstock up`")
    files = [source_file(spec.source) for spec in settings.specs()]
    missing = [str(file) for file in files if file is not None and not file.exists()]
    if missing:
        return Finding("models", Level.FAIL, f"no such file: {', '.join(missing)}", "correct `source` in penstock.toml")
    faults = model_file_faults(settings)
    if faults:
        return Finding("models", Level.FAIL, "; ".join(faults), "correct these in penstock.toml")
    absent = not_here(settings)
    if absent and settings.models_cache.offline:
        what = f"not in the models' cache {settings.models_dir}, and models_cache.offline is set: {', '.join(absent)}"
        return Finding("models", Level.FAIL, what, "penstock models fetch, with models_cache.offline = false")
    later = f"; still to be fetched: {', '.join(absent)}" if absent else ""
    return Finding("models", Level.OK, f"{', '.join(settings.models)}{later}", "penstock models fetch" if absent else "")


def runtimes(settings: Settings, installed: Callable[[str], str | None]) -> Finding:
    """Whether the libraries that the declared model files need are installed."""
    lacking = {
        f"{spec.name} {spec.version}": missing_extras(
            spec.source.partition("#")[0], spec.device, spec.runtime, installed, task=spec.task
        )
        for spec in settings.specs()
    }
    missing = sorted({extra for extras in lacking.values() for extra in extras})
    if missing:
        text = "; ".join(f"{model} needs {', '.join(extras)}" for model, extras in lacking.items() if extras)
        return Finding("runtimes", Level.FAIL, text, install_hint(*missing))
    return Finding("runtimes", Level.OK, "the declared model files have their libraries")


def packages(settings: Settings) -> Finding:
    """Whether the packages of the models' `requirements` are installed."""
    faults, command = missing_requirements(settings)
    if faults:
        return Finding("packages", Level.FAIL, "; ".join(faults), command or "correct `requirements` in penstock.toml")
    told, command = missing_of_sources(settings)
    if told:
        return Finding("packages", Level.WARN, "; ".join(told), command or "correct the requirements of the archive")
    named = any(spec.requirements for spec in settings.specs())
    return Finding("packages", Level.OK, "the models' requirements are installed" if named else "no model has requirements")


def broken_settings(error: ConfigError) -> Finding:
    return Finding("settings", Level.FAIL, error.message, "correct these, then `penstock config --check`")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
