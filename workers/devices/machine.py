"""The facts about this machine that a pinning plan needs, and how they are found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from penstock.model_spec import ModelSpec
from penstock.workers.devices import mps
from penstock.workers.devices.assign import is_on_cpu
from penstock.workers.devices.cgroups import memory_limit_bytes
from penstock.workers.devices.gpus import Gpus, Nvml, PyNvml, read_gpus, visible_gpus
from penstock.workers.devices.topology import Topology, read_topology

_FOR_MODELS = 0.9


@dataclass(frozen=True, slots=True)
class Machine:
    """`mps`: NVIDIA's MPS daemon runs, which lets several processes compute on one GPU at the same time."""

    topology: Topology
    gpus: Gpus = field(default_factory=Gpus)
    mps: bool = False


def discover(*, root: Path = Path("/"), nvml: Nvml | None = None, environment: Mapping[str, str] | None = None) -> Machine:
    """The cores and GPUs that this process may use. Raises nothing if there are no GPUs: `gpus.absent` says why."""
    environment = os.environ if environment is None else environment
    gpus = visible_gpus(read_gpus(nvml or PyNvml(), root), environment)
    return Machine(read_topology(root), gpus, mps.is_used(root, environment))


def discover_for(specs: Iterable[ModelSpec]) -> Machine:
    """As `discover`, but without a look for GPUs if no model asks for one: the first look loads the driver."""
    return Machine(read_topology()) if all(map(is_on_cpu, specs)) else discover()


def memory_for_models(root: Path = Path("/")) -> int:
    """Bytes that models on the CPU may take together: a tenth of what there is stays for the worker and the system."""
    granted = memory_limit_bytes(root)
    total = int(psutil.virtual_memory().total)
    return int(_FOR_MODELS * min(total, granted or total))
