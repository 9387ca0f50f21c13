"""The GPUs of this machine as NVML reports them: identity, memory, MIG slices. If there are none, it says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from penstock.distribution import install_hint

_ENABLED = 1


class NvmlRefused(Exception):
    """NVML is absent, or has no answer to this question."""


class Nvml(Protocol):
    """NVML as one call: the name of a function without its prefix, and its arguments. Tests answer it from recordings."""

    def ask(self, name: str, *arguments: Any) -> Any:
        """Raises `NvmlRefused`."""


class PyNvml:
    """The real NVML. Its library is imported at the first call, because most machines have none."""

    def ask(self, name: str, *arguments: Any) -> Any:
        try:
            import pynvml
        except ImportError as missing:
            raise NvmlRefused(f"nvidia-ml-py is not installed: {install_hint('gpu')}") from missing
        try:
            return getattr(pynvml, f"nvml{name}")(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlRefused(explained(str(error))) from error


def explained(words: str) -> str:
    """NVML's message and, where it gives no advice, what to do. Pure."""
    if "unknown error" not in words.lower():
        return f"NVML says: {words}"
    return (
        f"NVML says: {words}; in a container this means that the host took the GPUs away, as a reload of its systemd does: "
        "only a new container gets them back"
    )


@dataclass(frozen=True, slots=True)
class Unit:
    """What a slot can get: a whole GPU or a MIG slice. `index` is the GPU's place in PCI order."""

    uuid: str
    name: str
    index: int
    memory_bytes: int
    free_bytes: int
    node: int | None = None
    slice: bool = False


@dataclass(frozen=True, slots=True)
class Gpu:
    """`mig`: the GPU is cut into slices, and only these can be used."""

    whole: Unit
    bus_id: str = ""
    mig: bool = False
    slices: tuple[Unit, ...] = ()

    @property
    def units(self) -> tuple[Unit, ...]:
        return self.slices if self.mig else (self.whole,)


@dataclass(frozen=True, slots=True)
class Gpus:
    """`absent` says why `found` is empty."""

    found: tuple[Gpu, ...] = ()
    driver: str = ""
    absent: str = ""

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(unit for gpu in self.found for unit in gpu.units)


def read_gpus(nvml: Nvml, root: Path = Path("/")) -> Gpus:
    """All GPUs that NVML sees. Nothing is initialised on them, so no memory is taken there."""
    try:
        nvml.ask("Init")
    except NvmlRefused as refused:
        return Gpus(absent=str(refused))
    try:
        driver = _words(nvml.ask("SystemGetDriverVersion"))
        gpus = tuple(_gpu(nvml, index, root) for index in range(nvml.ask("DeviceGetCount")))
        return Gpus(gpus, driver, "" if gpus else "the driver sees no GPU")
    except NvmlRefused as refused:
        return Gpus(absent=str(refused))
    finally:
        _or(nvml, None, "Shutdown")


def _gpu(nvml: Nvml, index: int, root: Path) -> Gpu:
    handle = nvml.ask("DeviceGetHandleByIndex", index)
    bus_id = _words(nvml.ask("DeviceGetPciInfo", handle).busId)
    whole = _unit(nvml, handle, index, _node(root, bus_id))
    # NVML refuses this for every GPU that cannot be cut.
    current, _pending = _or(nvml, (0, 0), "DeviceGetMigMode", handle)
    slices = _slices(nvml, handle, whole) if current == _ENABLED else ()
    return Gpu(whole, bus_id, mig=current == _ENABLED, slices=slices)


def _unit(nvml: Nvml, handle: Any, index: int, node: int | None) -> Unit:
    memory = nvml.ask("DeviceGetMemoryInfo", handle)
    uuid, name = (_words(nvml.ask(question, handle)) for question in ("DeviceGetUUID", "DeviceGetName"))
    return Unit(uuid, name, index, int(memory.total), int(memory.free), node)


def _slices(nvml: Nvml, handle: Any, whole: Unit) -> tuple[Unit, ...]:
    slices = []
    for place in range(_or(nvml, 0, "DeviceGetMaxMigDeviceCount", handle)):
        # Places between slices may be empty.
        cut = _or(nvml, None, "DeviceGetMigDeviceHandleByIndex", handle, place)
        if cut is not None:
            slices.append(replace(_unit(nvml, cut, whole.index, whole.node), slice=True))
    return tuple(slices)


def _node(root: Path, bus_id: str) -> int | None:
    """The GPU's NUMA node, from sysfs. NVML writes the domain of the bus with eight digits, the kernel with four."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        node = int((root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node").read_text("ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _or(nvml: Nvml, fallback: Any, name: str, *arguments: Any) -> Any:
    try:
        return nvml.ask(name, *arguments)
    except NvmlRefused:
        return fallback


def _words(text: str | bytes) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def visible_gpus(gpus: Gpus, environment: Mapping[str, str]) -> Gpus:
    """The GPUs that the worker's own CUDA_VISIBLE_DEVICES names, in its order, up to the first unknown one.

    CUDA reads the variable in the same way, but here numbers always count in PCI order.
    """
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    if variable is None or not gpus.found:
        return gpus
    kept: list[Gpu] = []
    for entry in variable.split(","):
        gpu = _named(gpus, entry.strip())
        if gpu is None:
            break
        kept.append(gpu)
    hidden = "" if kept else f"CUDA_VISIBLE_DEVICES={variable!r} hides the {len(gpus.found)} that the driver sees"
    return replace(gpus, found=tuple(kept), absent=hidden)


def _named(gpus: Gpus, entry: str) -> Gpu | None:
    for gpu in gpus.found:
        cut = [part for part in gpu.slices if part.uuid == entry]
        if cut:
            return replace(gpu, slices=tuple(cut))
        if entry == str(gpu.whole.index) or (entry.startswith("GPU-") and gpu.whole.uuid.startswith(entry)):
            return gpu
    return None
