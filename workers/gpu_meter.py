"""Memory and utilisation of GPUs, from the driver's own library (NVML), where that is installed."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import structlog

log = structlog.get_logger(__name__)
GPU_METRICS_OFF = "gpu_metrics_off"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """`utilization` from 0 to 1; None where the device does not tell, as a MIG slice."""

    used_bytes: int
    total_bytes: int
    utilization: float | None


class GpuMeter:
    """Opens NVML when a GPU is first asked for, so that a worker on the CPU never loads it; `nvml`: one opened before."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._off = False
        self._silent: set[str] = set()
        self._lock = threading.Lock()

    def read(self, device: str) -> GpuReading | None:
        """What the driver says of `cuda:0`, `cuda:GPU-...` or `cuda:MIG-...`; None when it cannot be asked."""
        with self._lock:
            if self._off or not self._open():
                return None
            try:
                return self._reading(device)
            except self._nvml.NVMLError as error:
                # Asked again at the next scrape, but said once.
                if device not in self._silent:
                    log.warning(GPU_METRICS_OFF, device=device, reason=str(error))
                self._silent.add(device)
                return None

    def _open(self) -> bool:
        if self._nvml is not None:
            return True
        try:
            import pynvml

            pynvml.nvmlInit()
        except ImportError:
            return self._give_up("nvidia-ml-py is not installed: pip install 'penstock[gpu]'")
        except pynvml.NVMLError as error:
            return self._give_up(str(error))
        self._nvml = pynvml
        return True

    def _give_up(self, reason: str) -> bool:
        log.warning(GPU_METRICS_OFF, reason=reason)
        self._off = True
        return False

    def _reading(self, device: str) -> GpuReading:
        handle = self._handle(physical(device, os.environ.get("CUDA_VISIBLE_DEVICES")))
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        try:
            utilization = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0
        except self._nvml.NVMLError_NotSupported:
            utilization = None
        return GpuReading(memory.used, memory.total, utilization)

    def _handle(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)


def physical(device: str, visible: str | None) -> str:
    """What NVML calls a device: an index over all GPUs, or a UUID.

    NVML knows nothing of CUDA_VISIBLE_DEVICES, by which CUDA counts anew: there `cuda:1` is the second of those listed.
    """
    _, _, name = device.partition(":")
    name = name or "0"
    listed = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
    return listed[int(name)] if name.isdigit() and int(name) < len(listed) else name
