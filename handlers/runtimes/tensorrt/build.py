"""Builds a TensorRT engine from an ONNX model: parses it, reports what the parser refuses, sets precision and profiles.

Written for `tensorrt` >= 10 and `tensorrt_rtx`, which share their names. Newer ones (11, RTX) have only strongly typed
networks: there the model decides on half precision, not a flag.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.onnx import onnx_file
from penstock.handlers.runtimes.onnx.onnx_file import label
from penstock.handlers.runtimes.tensorrt.profiles import Profile

log = logging.getLogger(__name__)

_HALF = {"fp16": "FP16", "bf16": "BF16"}
# Name in the `session` table -> the range of its values.
_OPTIONS = {
    "workspace_bytes": range(1 << 62),
    "builder_optimization_level": range(6),
    "avg_timing_iterations": range(1, 1_000),
    "max_aux_streams": range(64),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build. `compute_capability`, such as (8, 9), names a GPU that is absent, if the library can build for it; None:
    the present one.
    """

    precision: str = "fp32"
    profiles: tuple[Profile, ...] = ()
    options: dict[str, int] = field(default_factory=dict)
    compute_capability: tuple[int, int] | None = None


def checked_options(session: Mapping[str, Any]) -> dict[str, int]:
    """The builder's options from the `session` table. Raises `HandlerLoadError` with every fault in it."""
    given = {name: value for name, value in session.items() if name != "shapes"}
    faults = [f"{name} is not known here (known: shapes, {', '.join(_OPTIONS)})" for name in given if name not in _OPTIONS]
    for name, allowed in _OPTIONS.items():
        if name in given and (isinstance(given[name], bool) or given[name] not in allowed):
            faults.append(f"{name} must be a whole number from {allowed[0]} to {allowed[-1]}, not {given[name]!r}")
    if faults:
        raise HandlerLoadError(f"the table `session` cannot be used with TensorRT: {'; '.join(faults)}")
    return given


def build(trt: Any, model: Path | bytes, recipe: Recipe, *, timings: bytes = b"") -> tuple[bytes, bytes]:
    """The serialised engine, and the timing cache for the next build (empty if the library has none).

    Raises `HandlerLoadError` with the parser's or the builder's own words.
    """
    build_log = make_build_log(trt)
    builder = trt.Builder(build_log)
    network = builder.create_network(0)
    # Keep the parser until the engine is built: the network's weights are in its memory.
    parser = _parsed(trt, network, model, build_log)
    config = builder.create_builder_config()
    _set_precision(trt, config, model, recipe.precision)
    _set_options(trt, config, recipe)
    for profile in recipe.profiles:
        _add_profile(builder, config, profile)
    cache = _timing_cache(trt, config, timings)
    plan = builder.build_serialized_network(network, config)
    del parser
    if plan is None:
        raise HandlerLoadError(f"TensorRT cannot build an engine from {label(model)}: {build_log.text()}")
    return bytes(plan), bytes(cache.serialize()) if cache is not None else b""


def make_build_log(trt: Any) -> Any:
    """The library's logger: keeps errors for the message of our own error, and passes warnings on."""

    class BuildLog(trt.ILogger):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                self.errors.append(" ".join(message.split())[:400])
            elif severity == trt.ILogger.Severity.WARNING:
                log.warning("TensorRT: %s", message)

        def text(self) -> str:
            return "; ".join(self.errors[:3]) or "it gives no reason"

    return BuildLog()


def _parsed(trt: Any, network: Any, model: Path | bytes, build_log: Any) -> Any:
    parser = trt.OnnxParser(network, build_log)
    # Parse by path if there is one: the parser looks for external weights beside the file.
    parsed = parser.parse(model) if isinstance(model, bytes) else parser.parse_from_file(str(model))
    if parsed:
        return parser
    errors = [parser.get_error(number) for number in range(parser.num_errors)]
    refused = "; ".join(_error_text(error) for error in errors[:3]) or build_log.text()
    raise HandlerLoadError(
        f'TensorRT cannot read {label(model)}: {refused}. Export it with operators that TensorRT knows, or use runtime = "onnx"'
    )


def _error_text(error: Any) -> str:
    node = f"node {error.node_name()} ({error.node_operator()}): " if error.node_operator() else ""
    return node + " ".join(error.desc().split())


def _set_precision(trt: Any, config: Any, model: Path | bytes, precision: str) -> None:
    # TF32 is on by default, but a model requested in fp32 must be computed in fp32.
    (config.set_flag if precision == "tf32" else config.clear_flag)(trt.BuilderFlag.TF32)
    if precision not in _HALF:
        return
    flag = getattr(trt.BuilderFlag, _HALF[precision], None)
    if flag is not None:
        config.set_flag(flag)
        return
    actual = onnx_file.read(model).precision
    if actual != precision:
        raise HandlerLoadError(
            f"{label(model)} is a model in {actual}, and TensorRT {trt.__version__} computes in the types it is written in; "
            f'for precision = "{precision}" export it in that precision (for fp16: '
            "onnxruntime.transformers.float16.convert_float_to_float16)"
        )


def _set_options(trt: Any, config: Any, recipe: Recipe) -> None:
    for name, value in recipe.options.items():
        if name == "workspace_bytes":
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, value)
        else:
            setattr(config, name, value)
    if recipe.compute_capability is None:
        return
    member = "SM{}{}".format(*recipe.compute_capability)
    target = getattr(trt.ComputeCapability, member, None) if hasattr(trt, "ComputeCapability") else None
    if target is None:
        raise HandlerLoadError(f"TensorRT {trt.__version__} cannot build for {member} without a GPU; build it on that GPU")
    config.num_compute_capabilities = 1
    config.set_compute_capability(target, 0)


def _add_profile(builder: Any, config: Any, profile: Profile) -> None:
    shapes = builder.create_optimization_profile()
    for name, span in profile.items():
        shapes.set_shape(name, *span)
    if config.add_optimization_profile(shapes) < 0:
        raise HandlerLoadError(f"TensorRT refuses the profile {profile}; correct session.shapes")


def _timing_cache(trt: Any, config: Any, timings: bytes) -> Any:
    # With RTX these calls only warn: RTX compiles its kernels when the engine is loaded.
    if "rtx" in trt.__name__:
        return None
    cache = config.create_timing_cache(timings)
    # False: timings of another version or GPU are ignored, and a new cache is started.
    if not config.set_timing_cache(cache, False):
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    return cache


def version_of(plan: bytes) -> str:
    """The version of TensorRT that wrote a plan, if its header tells; else empty.

    The format is not documented. Plans of RTX 1.7 begin with four letters that end in `trt`, and have four numbers at byte 24.
    """
    return ".".join(map(str, plan[24:28])) if len(plan) > 28 and plan[1:4] == b"trt" else ""
