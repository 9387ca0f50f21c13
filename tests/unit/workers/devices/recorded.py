"""Machines recorded as JSON: the files of the kernel, and the answers of NVML."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.workers.devices.gpus import NvmlRefused
from penstock.workers.devices.machine import Machine, discover

FIXTURES = Path(__file__).with_name("fixtures")


class RecordedNvml:
    """NVML with recorded answers. A handle is the record of its device; a question without record fails as NVML fails."""

    def __init__(self, answers: dict[str, Any] | None) -> None:
        self._answers = answers

    def ask(self, name: str, *arguments: Any) -> Any:
        if self._answers is None:
            raise NvmlRefused("NVML says: Driver Not Loaded")
        if name in ("Init", "Shutdown"):
            return None
        answer = self._listed(name, *arguments)
        if answer is None:
            raise NvmlRefused(f"NVML says: Not Supported ({name})")
        return SimpleNamespace(**answer) if name in ("DeviceGetMemoryInfo", "DeviceGetPciInfo") else answer

    def _listed(self, name: str, *arguments: Any) -> Any:
        assert self._answers is not None
        devices = self._answers["devices"]
        match name:
            case "SystemGetDriverVersion":
                return self._answers[name]
            case "DeviceGetCount":
                return len(devices)
            case "DeviceGetHandleByIndex":
                return devices[arguments[0]]
            case "DeviceGetMigDeviceHandleByIndex":
                cut = arguments[0]["MigDevices"]
                return cut[arguments[1]] if arguments[1] < len(cut) else None
        return arguments[0].get(name)


def machine(name: str, folder: Path, **environment: str) -> Machine:
    """Return the machine of that name, with its files written below `folder`."""
    record = json.loads((FIXTURES / f"{name}.json").read_text())
    for path, text in record["files"].items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return discover(root=folder, nvml=RecordedNvml(record["nvml"]), environment=environment)
