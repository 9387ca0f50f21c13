"""Memory and utilisation of the GPUs in use, read from their driver."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import structlog

from penstock.workers.devices.gpus import Nvml, NvmlRefused

log = structlog.get_logger(__name__)
GPU_METRICS_OFF = "gpu_metrics_off"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """`utilization` from 0 to 1, and the same of the memory's bus; None for a device that does not report it, such as a MIG
    slice.
    """

    used_bytes: int
    total_bytes: int
    utilization: float | None
    memory_utilization: float | None = None


class GpuMeter:
    """Opens NVML when a GPU is first asked for, so that a worker on the CPU never does. Safe to use from several threads."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._open = False
        self._silent: set[str] = set()
        self._lock = threading.Lock()

    def read(self, uuid: str) -> GpuReading | None:
        """None if the driver has no answer. That is logged once per device, and the next call asks again."""
        with self._lock:
            try:
                return self._reading(uuid)
            except NvmlRefused as refused:
                if uuid not in self._silent:
                    log.warning(GPU_METRICS_OFF, device=uuid, reason=str(refused))
                self._silent.add(uuid)
                return None

    def _reading(self, uuid: str) -> GpuReading:
        if not self._open:
            self._nvml.ask("Init")
            self._open = True
        handle = self._nvml.ask("DeviceGetHandleByUUID", uuid)
        memory = self._nvml.ask("DeviceGetMemoryInfo", handle)
        return GpuReading(int(memory.used), int(memory.total), *self._utilization(handle))

    def _utilization(self, handle: object) -> tuple[float | None, float | None]:
        try:
            rates = self._nvml.ask("DeviceGetUtilizationRates", handle)
        except NvmlRefused:
            return None, None
        return float(rates.gpu) / 100.0, float(rates.memory) / 100.0
