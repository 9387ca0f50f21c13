"""The libraries that ONNX Runtime's GPU providers are linked against: loads them from pip's packages, names missing ones."""

from __future__ import annotations

import ctypes
import importlib
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any

from penstock.distribution import install_hint

_EXTRAS = {"cuda": "onnx-gpu", "tensorrt": "onnx-tensorrt"}


@cache
def preload(library: Any, kind: str) -> None:
    """Load the libraries of the provider `kind` from pip's packages: the system's loader does not search their folders.

    Call it once per process, before the first session. It refuses nothing: the system may have what pip lacks.
    """
    if kind == "cpu":
        return
    library.preload_dlls()
    if kind == "tensorrt":
        # The import loads TensorRT's libraries. Without the package the system may still have them.
        with suppress(ImportError):
            importlib.import_module("tensorrt")


def obstacle(library: Any, kind: str) -> str:
    """Why the provider's library cannot be loaded, in the loader's words, and what to do; empty if it can be loaded.

    Ask only after a session has failed: before that, ONNX Runtime has not loaded what the library needs.
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
    """The package that contains the library named in the loader's message."""
    if "libcuda.so" in words:
        return "this is NVIDIA's driver, which pip does not bring: install it, or give the container its GPUs"
    if "libnvinfer" in words or "libnvonnxparser" in words:
        version = tensorrt_version()
        why = f"TensorRT {version} is installed, which is not that version" if version else "pip has installed no TensorRT"
        return f"{why}; run: {_install(kind)}"
    return f"run: {_install(kind)}"


def tensorrt_version() -> str:
    """The version that pip installed, else empty: a library of the system tells its version only once it is loaded."""
    for name in ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"):
        with suppress(PackageNotFoundError):
            return distribution_version(name)
    return ""


def _install(kind: str) -> str:
    return install_hint(_EXTRAS[kind])
