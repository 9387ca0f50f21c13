"""What ONNX Runtime's GPU providers are linked against: loaded from where pip put it, and named where it is missing."""

from __future__ import annotations

import ctypes
import importlib
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any

_EXTRAS = {"cuda": "onnx-gpu", "tensorrt": "onnx-tensorrt"}


@cache
def preload(library: Any, kind: str) -> None:
    """Loads what the provider `kind` needs from pip's packages, in whose folders the system's loader does not look.

    Once per process, before the first session. Nothing is refused here: the system may have what pip has not.
    """
    if kind == "cpu":
        return
    library.preload_dlls()
    if kind == "tensorrt":
        # The import loads TensorRT's libraries. Without the package they may still be the system's.
        with suppress(ImportError):
            importlib.import_module("tensorrt")


def obstacle(library: Any, kind: str) -> str:
    """Why the provider's library cannot be loaded, in the loader's words, and what to do; empty where it can.

    To be asked after a session has failed: until then ONNX Runtime has not loaded what the library needs of itself.
    """
    file = Path(library.__file__).parent / "capi" / f"libonnxruntime_providers_{kind}.so"
    if not file.exists():
        return f"this build of ONNX Runtime has no {file.name}; run: pip uninstall -y onnxruntime && {_install(kind)}"
    try:
        ctypes.CDLL(str(file))
    except OSError as error:
        return f"{error}; {remedy(str(error), kind)}"
    return ""


def remedy(words: str, kind: str) -> str:
    """What brings the library that the loader's words name."""
    if "libcuda.so" in words:
        return "this is NVIDIA's driver, which pip does not bring: install it, or give the container its GPUs"
    if "libnvinfer" in words or "libnvonnxparser" in words:
        version = tensorrt_version()
        found = f"TensorRT {version} is installed, which is not that version" if version else "pip has installed no TensorRT"
        return f"{found}; run: {_install(kind)}"
    return f"run: {_install(kind)}"


def tensorrt_version() -> str:
    """As installed by pip, else empty; libraries of the system do not say theirs without being loaded."""
    for name in ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"):
        with suppress(PackageNotFoundError):
            return distribution_version(name)
    return ""


def _install(kind: str) -> str:
    return f"pip install 'penstock[{_EXTRAS[kind]}]'"
