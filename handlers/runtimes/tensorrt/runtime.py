"""TensorRT used directly: engines built from ONNX and cached, or plans as they are, run on a CUDA stream."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.distribution import install_hint, requirement
from penstock.errors import HandlerContractError, HandlerLoadError, InvalidInput
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.batches import BatchSizes
from penstock.handlers.runtimes.contract import Port, Runtime, kind_of, refuse_foreign
from penstock.handlers.runtimes.engine_cache import EngineCache, GpuTarget, cache_folder, engine_key, model_sha256
from penstock.handlers.runtimes.onnx import onnx_file
from penstock.handlers.runtimes.onnx.onnx_file import label
from penstock.handlers.runtimes.padding import Padding
from penstock.handlers.runtimes.tensorrt.build import Recipe, build, checked_options, make_build_log, version_of
from penstock.handlers.runtimes.tensorrt.cuda import Buffer, Device, gpu, open_device
from penstock.handlers.runtimes.tensorrt.profiles import batch_spans, profiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_LIBRARIES = ("tensorrt", "tensorrt_rtx")


class TensorRtRuntime(Runtime):
    """One engine with an execution context per profile, because switching the profile of a context costs time."""

    def __init__(self, trt: Any, engine: Any, device: Device, *, buckets: Sequence[int] = ()) -> None:
        names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
        taken = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        self._trt = trt
        self._engine = engine
        self._device = device
        self._buffers = {name: Buffer(device) for name in names}
        self._spans = _spans(engine, taken[0])
        self._contexts = [_context(engine, number, device) for number in range(len(self._spans))]
        self.provider = f"TensorRT {trt.__version__}"
        self.inputs = [_port(trt, engine, name) for name in taken]
        self.outputs = [name for name in names if name not in taken]
        self.output_ports = [_port(trt, engine, name) for name in self.outputs]
        sizes = _sizes(buckets, self._spans)
        self.stacks = sizes.high != 1
        self._padding = Padding(sizes)

    @property
    def padding_ratio(self) -> float:
        """The share of padded rows in the last call."""
        return self._padding.ratio

    def run(self, feed: Arrays, /) -> Arrays:
        return self._padding.run(feed, self._run)

    def _run(self, feed: Arrays) -> Arrays:
        context = self._contexts[self._profile(len(next(iter(feed.values()))))]
        for name, array in feed.items():
            if not context.set_input_shape(name, array.shape):
                raise InvalidInput(f"{name} has the shape {list(array.shape[1:])}, outside the range the engine was built for")
            self._buffers[name].send(array)
            context.set_tensor_address(name, self._buffers[name].address)
        shapes = {name: self._prepared(context, name) for name in self.outputs}
        if not context.execute_async_v3(self._device.stream):
            raise RuntimeError("TensorRT could not run the batch; its log names the layer")
        for name, (shape, dtype) in shapes.items():
            self._buffers[name].fetch(dtype.itemsize * _volume(shape))
        self._device.synchronize()
        return {name: self._buffers[name].read(shape, dtype) for name, (shape, dtype) in shapes.items()}

    def _prepared(self, context: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        shape = tuple(context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            raise HandlerContractError(
                f'the size of output {name} depends on the data ({list(shape)}), which is not read here; use runtime = "onnx"'
            )
        dtype = _dtype(self._trt, self._engine, name)
        self._buffers[name].reserve(dtype.itemsize * _volume(shape))
        context.set_tensor_address(name, self._buffers[name].address)
        return shape, dtype

    def _profile(self, rows: int) -> int:
        return next(number for number, (least, most) in enumerate(self._spans) if least <= rows <= most)


def open_model(model: Path | bytes, context: Context) -> TensorRtRuntime:
    """Open an engine for the model on the context's GPU; build the engine unless the cache has it. Raises `HandlerLoadError`
    without TensorRT or a GPU, for a model or plan that TensorRT refuses, and for options of other runtimes."""
    trt = library()
    index = gpu_index(context.device)
    refuse_foreign("tensorrt", context.runtime)
    device = open_device(index)
    plan = (
        model.read_bytes()
        if isinstance(model, Path) and kind_of(model) != ".onnx"
        else engine_for(trt, model, context, gpu(index))
    )
    return TensorRtRuntime(trt, loaded(trt, plan, label(model)), device, buckets=context.runtime.batch_buckets)


def engine_for(
    trt: Any, model: Path | bytes, context: Context, target: GpuTarget, *, compute_capability: tuple[int, int] | None = None
) -> bytes:
    """The serialised engine from the cache; a missing one is built and stored there."""
    options = context.runtime
    session_options = checked_options(options.session)
    inputs = onnx_file.read(model).inputs
    spans = batch_spans(options.batch_buckets, context.max_batch_size) if _free(inputs) else [(1, 1, 1)]
    shapes = tuple(profiles(inputs, spans, options.session.get("shapes", {})))
    recipe = Recipe(options.precision, shapes, session_options, compute_capability)
    cache = EngineCache(cache_folder(options.cache_dir, context.folder, os.environ))
    runtime = f"{trt.__name__} {trt.__version__}"
    key = engine_key(
        model_sha256(model), runtime=runtime, gpu=target, precision=options.precision, profiles=shapes, options=session_options
    )
    timings = engine_key("", runtime=runtime, gpu=target, precision="", options={})
    return cache.obtain(f"{key}.plan", lambda: _built(trt, model, recipe, cache=cache, timings=f"{timings}.timings"))


def _built(trt: Any, model: Path | bytes, recipe: Recipe, *, cache: EngineCache, timings: str) -> bytes:
    plan, measured = build(trt, model, recipe, timings=cache.kept(timings) or b"")
    if measured:
        cache.keep(timings, measured)
    return plan


def library() -> Any:
    """The module `tensorrt` if it is installed, else `tensorrt_rtx`."""
    for name in _LIBRARIES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise HandlerLoadError(
        f"TensorRT engines need TensorRT, which is not installed; run: {install_hint('tensorrt')} "
        f"(or '{requirement('tensorrt-rtx')}' for GeForce and RTX cards)"
    )


def loaded(trt: Any, plan: bytes, name: str) -> Any:
    """The engine of a plan. Raises `HandlerLoadError` with both versions and TensorRT's message."""
    build_log = make_build_log(trt)
    runtime = trt.Runtime(build_log)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is not None:
        return engine
    wrote = version_of(plan)
    origin = (
        f"it was written by TensorRT {wrote}, and this is {trt.__version__}; "
        if wrote
        else f"this is TensorRT {trt.__version__}; "
    )
    raise HandlerLoadError(
        f"TensorRT cannot load {name}: {origin}{build_log.text()}. A plan runs only with the version and kind of GPU "
        "it was built for: build it again here, or serve the ONNX model"
    )


def gpu_index(device: str) -> int:
    """Refuse a device that is not a GPU, by a `HandlerLoadError`."""
    base, _, index = device.partition(":")
    if base != "cuda" or (index and not index.isdecimal()):
        raise HandlerLoadError(f'TensorRT runs on GPUs, not on the device {device!r}; set device = "cuda", or runtime = "onnx"')
    return int(index or 0)


def _free(inputs: dict[str, tuple[int | None, ...]]) -> bool:
    return any(shape and shape[0] is None for shape in inputs.values())


def _spans(engine: Any, name: str) -> list[tuple[int, int]]:
    """Smallest and largest batch per profile."""
    fixed = engine.get_tensor_shape(name)[0]
    if fixed >= 0:
        return [(fixed, fixed)]
    rows = [engine.get_tensor_profile_shape(name, number) for number in range(engine.num_optimization_profiles)]
    return [(least[0], most[0]) for least, _, most in rows]


def _context(engine: Any, profile: int, device: Device) -> Any:
    context = engine.create_execution_context()
    if context is None:
        raise HandlerLoadError("TensorRT found no memory for this engine on the GPU: out of memory; use fewer batch_buckets")
    context.set_optimization_profile_async(profile, device.stream)
    device.synchronize()
    return context


def _sizes(buckets: Sequence[int], spans: Sequence[tuple[int, int]]) -> BatchSizes:
    """The declared buckets that a profile accepts. Without any: every size, or the bounds of the profiles if these leave gaps.
    The declared buckets that a profile accepts. Without any: every size, or the bounds of the profiles if these leave gaps.
    """
    fitting = {bucket for bucket in buckets if any(least <= bucket <= most for least, most in spans)}
    smallest, largest = min(least for least, _ in spans), max(most for _, most in spans)
    gaps = any(not any(least <= size <= most for least, most in spans) for size in range(1, largest + 1))
    bounds = {size for span in spans for size in span} if gaps else set()
    return BatchSizes(smallest, largest, tuple(sorted(fitting or bounds)))


def _port(trt: Any, engine: Any, name: str) -> Port:
    shape = tuple(engine.get_tensor_shape(name))
    if not shape:
        raise HandlerLoadError(f"input {name} of the engine has no axis for the batch; export the model again with one")
    if engine.is_shape_inference_io(name):
        raise HandlerLoadError(f"input {name} of the engine is a shape, not data; export the model without it")
    return Port(name, _dtype(trt, engine, name).name, tuple(size if size >= 0 else None for size in shape[1:]))


def _dtype(trt: Any, engine: Any, name: str) -> np.dtype[Any]:
    import numpy as np

    try:
        dtype: np.dtype[Any] = np.dtype(trt.nptype(engine.get_tensor_dtype(name)))
    except TypeError as error:
        raise HandlerLoadError(
            f"{name} is {engine.get_tensor_dtype(name)}, which arrays cannot hold; export it as float"
        ) from error
    return dtype


def _volume(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
