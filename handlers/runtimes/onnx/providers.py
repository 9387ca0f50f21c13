"""Chooses ONNX Runtime's providers and their options from `device`, `provider` and `precision`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.engine_cache import EngineCache, engine_key, model_sha256
from penstock.handlers.runtimes.onnx import onnx_file
from penstock.handlers.runtimes.onnx.libraries import tensorrt_version
from penstock.handlers.runtimes.onnx.onnx_file import label
from penstock.handlers.runtimes.onnx.session import SessionConfig
from penstock.handlers.runtimes.tensorrt.profiles import Profile, batch_spans, outline, profiles
from penstock.model_spec import RuntimeOptions

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
_DEVICES = ("cpu", "cuda")
_STRONGLY_TYPED = 11
_CONVERT = {
    "fp16": "convert it with onnxruntime.transformers.float16.convert_float_to_float16 (keep_io_types=True)",
    "bf16": "export it in bfloat16 from the framework it was trained in",
}


@dataclass(frozen=True, slots=True)
class Provider:
    """`kind` is the setting's value. `names` are in the order of preference, with `options` for each. `cache` names the folder
    for engines, if there are any. `index` is the GPU's."""

    kind: str
    names: tuple[str, ...]
    options: tuple[dict[str, str], ...]
    index: int = 0
    cache: str = ""


def chosen(model: Path | bytes, context: Context, config: SessionConfig, *, cache: EngineCache, version: str) -> Provider:
    """The provider's kind. Raises `HandlerLoadError` if device, provider and precision do not fit together."""
    kind, index = checked_kind(model, context, config)
    if kind == "cpu":
        return Provider(kind, (CPU,), ({},))
    tf32 = "1" if context.runtime.precision == "tf32" else "0"
    arena = arena_options(onnx_file.read(model).inputs, context.runtime.batch_buckets)
    cuda = {"device_id": str(index), "use_tf32": tf32} | arena | config.provider_options.get("cuda", {})
    if kind == "cuda":
        return Provider(kind, (CUDA,), (cuda,), index)
    name, engines = _engines(model, context, config, cache=cache, version=version, index=index)
    return Provider(kind, (TENSORRT, CUDA), ({"device_id": str(index)} | engines, cuda), index, name)


def arena_options(inputs: Mapping[str, tuple[int | None, ...]], buckets: tuple[int, ...]) -> dict[str, str]:
    """How the memory arena grows: by what is asked for, where batches come in few shapes; else by the default, which doubles.

    A doubled arena may take twice what the largest batch needs. With many shapes, one that grows by what is asked for breaks up
    into pieces that are too small for the next shape.
    """
    few = all(None not in shape[1:] for shape in inputs.values()) and (
        bool(buckets) or all(shape[:1] != (None,) for shape in inputs.values())
    )
    return {"arena_extend_strategy": "kSameAsRequested"} if few else {}


def checked_kind(model: Path | bytes, context: Context, config: SessionConfig) -> tuple[str, int]:
    """Refuse settings that do not fit the model, by a `HandlerLoadError`. Only the file is read."""
    kind, index = kind_for(context.device, context.runtime.provider)
    spare = set(config.provider_options) - ({"cuda", "tensorrt"} if kind == "tensorrt" else {kind})
    if spare:
        raise HandlerLoadError(f"session.{spare.pop()} has options for a provider that is not used: this model runs on {kind}")
    check_precision(model, kind, context.runtime)
    return kind, index


def kind_for(device: str, provider: str) -> tuple[str, int]:
    """The provider's kind and the GPU's index."""
    base, _, index = device.partition(":")
    if base not in _DEVICES or (index and not index.isdecimal()):
        raise HandlerLoadError(f"ONNX Runtime has no provider for the device {device!r}; use one of {', '.join(_DEVICES)}")
    kind = base if provider == "auto" else provider
    if (kind == "cpu") is not (base == "cpu"):
        raise HandlerLoadError(
            f'provider {provider!r} does not run on the device {device!r}; set device = "{"cpu" if kind == "cpu" else "cuda"}" '
            'or provider = "auto"'
        )
    return kind, int(index or 0)


def check_precision(model: Path | bytes, kind: str, options: RuntimeOptions) -> None:
    if options.quantize == "int8" and (kind != "cpu" or options.precision != "fp32"):
        raise HandlerLoadError(
            'quantize = "int8" works on the CPU with precision = "fp32"; elsewhere set it to "off" and export the model with '
            "QuantizeLinear and DequantizeLinear nodes"
        )
    if options.precision == "fp32" or (kind == "cuda" and options.precision == "tf32"):
        return
    if by_builder(kind, options.precision, tensorrt_version()):
        return
    if options.precision == "tf32":
        raise HandlerLoadError(f'precision = "tf32" is a mode of GPUs, set by CUDA; the provider {kind} does not take it')
    actual = onnx_file.read(model).precision
    if actual != options.precision:
        raise HandlerLoadError(
            f"{label(model)} is a model in {actual}, and the provider {kind} runs it as it is; for precision = "
            f'"{options.precision}" {_CONVERT[options.precision]}'
        )


def by_builder(kind: str, precision: str, version: str) -> bool:
    """Whether TensorRT makes the precision from a model in fp32. From 11 on it computes in the types of the file."""
    major = version.partition(".")[0]
    strongly_typed = major.isdigit() and int(major) >= _STRONGLY_TYPED
    return kind == "tensorrt" and precision in ("fp16", "bf16") and not strongly_typed


def _engines(
    model: Path | bytes, context: Context, config: SessionConfig, *, cache: EngineCache, version: str, index: int
) -> tuple[str, dict[str, str]]:
    """The folder for this model's engines, and the options that make the provider use it."""
    from penstock.handlers.runtimes.tensorrt.cuda import gpu

    precision = context.runtime.precision
    own = config.provider_options.get("tensorrt", {})
    profile = _profile(model, context)
    shapes = {f"trt_profile_{word}_shapes": outline(profile, bound) for bound, word in enumerate(("min", "opt", "max"))}
    name = engine_key(
        model_sha256(model),
        runtime=f"onnxruntime {version}, TensorRT {tensorrt_version() or 'of the system'}",
        gpu=gpu(index),
        precision=precision,
        profiles=profile,
        options=own,
    )
    folder = str(cache.folder / name)
    options = {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": folder,
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": folder,
        **({f"trt_{precision}_enable": "1"} if by_builder("tensorrt", precision, tensorrt_version()) else {}),
        **(shapes if profile else {}),
    }
    return name, options | own


def _profile(model: Path | bytes, context: Context) -> Profile:
    """Shapes from one item to the largest batch; empty if the model's shapes are fixed."""
    inputs = onnx_file.read(model).inputs
    spans = batch_spans(context.runtime.batch_buckets, context.max_batch_size)
    span = (1, max(best for _, best, _ in spans), max(most for _, _, most in spans))
    shapes: dict[str, Any] = context.runtime.session.get("shapes", {})
    profile = profiles(inputs, [span], shapes)[0]
    return profile if any(None in shape for shape in inputs.values()) else {}
