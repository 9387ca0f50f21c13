"""All of this machine that a plan needs to know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.workers.devices.gpus import Gpus, Nvml, PyNvml, read_gpus, visible
from penstock.workers.devices.topology import Topology, read_topology

_MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_DEFAULT = "tmp/nvidia-mps"


@dataclass(frozen=True, slots=True)
class Machine:
    """`mps`: NVIDIA's daemon runs that lets several processes compute on one GPU at the same time."""

    topology: Topology
    gpus: Gpus = field(default_factory=Gpus)
    mps: bool = False


def discover(*, root: Path = Path("/"), nvml: Nvml | None = None, environment: Mapping[str, str] | None = None) -> Machine:
    """What is here and may be used. Never raises for what is not: `gpus.absent` says why there are none."""
    environment = os.environ if environment is None else environment
    gpus = visible(read_gpus(nvml or PyNvml(), root), environment)
    return Machine(read_topology(root), gpus, _mps(root, environment))


def _mps(root: Path, environment: Mapping[str, str]) -> bool:
    """Its control pipe lies where its clients look for it."""
    folder = environment.get(_MPS_VARIABLE)
    return ((Path(folder) if folder else root / _MPS_DEFAULT) / "control").exists()
