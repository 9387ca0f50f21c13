"""Which extras a model file needs and which of them are missing. No runtime library is imported to find out."""

from __future__ import annotations

from collections.abc import Callable

from penstock.handlers.runtimes.contract import KINDS, kind_of
from penstock.model_spec import RuntimeOptions

# Extra -> packages; any one of them is enough.
_BROUGHT_BY = {
    "onnx": ("onnxruntime", "onnxruntime-gpu"),
    "onnx-gpu": ("onnxruntime-gpu",),
    "onnx-quantize": ("onnx",),
    "onnx-tensorrt": ("tensorrt-cu13", "tensorrt"),
    "tensorrt": ("tensorrt", "tensorrt-rtx", "tensorrt-cu12", "tensorrt-cu13"),
    "torch": ("torch",),
    "images": ("pillow",),
    "text": ("tokenizers",),
}
# ONNX Runtime's TensorRT provider is linked against this major version; the libraries of newer ones have other names.
_MAJORS = {"onnx-tensorrt": "10"}


def missing_extras(
    source: str, device: str, options: RuntimeOptions, installed: Callable[[str], str | None], *, task: str = ""
) -> list[str]:
    """The extras to install before `source` can run. Handler code needs none here: its own imports report what is missing.

    `installed` returns the version of a distribution, or None.
    """
    needed = [*_needed(source, device, options), *_needed_by_task(task)]
    return [extra for extra in needed if not any(_serves(extra, installed(package)) for package in _BROUGHT_BY[extra])]


def _serves(extra: str, version: str | None) -> bool:
    major = _MAJORS.get(extra)
    return version is not None and (major is None or version.partition(".")[0] == major)


def _needed(source: str, device: str, options: RuntimeOptions) -> list[str]:
    runtimes = KINDS.get(kind_of(source), ())
    runtime = options.runtime if options.runtime in runtimes else next(iter(runtimes), "")
    if runtime != "onnx":
        return [runtime] if runtime in _BROUGHT_BY else []
    extras = ["onnx" if device == "cpu" else "onnx-gpu"]
    extras += ["onnx-tensorrt"] if options.provider == "tensorrt" else []
    return extras + (["onnx-quantize"] if options.quantize == "int8" else [])


def _needed_by_task(task: str) -> list[str]:
    if not task:
        return []
    return ["text" if task.startswith("text-") else "images"]
