"""ONNX models on ONNX Runtime. The library is imported with the first model, because it takes 68 MB."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.distribution import install_hint, requirement
from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.device_errors import is_out_of_memory
from penstock.handlers.runtimes.batches import BatchSizes
from penstock.handlers.runtimes.contract import Port, refuse_foreign
from penstock.handlers.runtimes.engine_cache import EngineCache, cache_folder
from penstock.handlers.runtimes.onnx.libraries import obstacle, preload
from penstock.handlers.runtimes.onnx.onnx_file import label
from penstock.handlers.runtimes.onnx.profile import OnnxProfile
from penstock.handlers.runtimes.onnx.providers import Provider, chosen
from penstock.handlers.runtimes.onnx.session import SessionConfig, fallen, flattened, session_config, session_options, spinning
from penstock.handlers.runtimes.padding import Padding
from penstock.handlers.runtimes.parallel_calls import ParallelCalls, calls_at_once
from penstock.handlers.runtimes.symbols import Symbol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

log = logging.getLogger(__name__)

_DTYPES = {"float": "float32", "double": "float64", "string": "object"}
_RECORD = "session.record_ep_graph_assignment_info"


class OnnxRuntime:
    """A `Runtime` around one session. With a `binding`, inputs and outputs are in the device's memory.

    `shrink` are the options of a run that gives unused memory back. `open_twin` opens a session of the same model that records
    its calls below a path. `open_single` opens a session with a
    single thread, for `at_once` calls in parallel.
    """

    def __init__(
        self,
        session: Any,
        *,
        buckets: tuple[int, ...] = (),
        binding: Binding | None = None,
        open_twin: Callable[[str], Any] | None = None,
        open_single: Callable[[], Any] | None = None,
        at_once: int = 1,
        shrink: Any = None,
    ) -> None:
        self._session = self._serving = session
        self._shrink, self._shrinking = shrink, None
        self._binding = binding
        self._open_twin = open_twin
        self._open_single = open_single
        self._at_once = at_once
        self._parallel: ParallelCalls | None = None
        self.provider: str = session.get_providers()[0]
        self.inputs = [_port(given.name, given.type, given.shape) for given in session.get_inputs()]
        self.outputs = [_checked_output(output.name, output.type) for output in session.get_outputs()]
        self.output_ports = _output_ports(session.get_outputs())
        sizes = _batch_sizes({given.name: given.shape[0] for given in session.get_inputs()}).padded_to(buckets)
        self.stacks = sizes.high != 1
        self._sizes = sizes
        self._padding = Padding(sizes)

    @property
    def padding_ratio(self) -> float:
        """The share of padded rows in the last call."""
        return self._padding.ratio

    def run(self, feed: Arrays, /) -> Arrays:
        return self._padding.run(feed, self._run)

    def _run(self, feed: Arrays) -> Arrays:
        # After memory ran out, the arena still holds what the batch that failed had taken: the next run gives it back.
        options, self._shrinking = self._shrinking, None
        try:
            if self._binding is not None:
                return self._binding.run(feed, self.outputs, options)
            return self._on(self._session, feed, options)
        except Exception as error:
            if is_out_of_memory(error):
                self._shrinking = self._shrink
            raise

    def _on(self, session: Any, feed: Arrays, options: Any = None) -> Arrays:
        return dict(zip(self.outputs, session.run(self.outputs, feed, options), strict=True))

    def open_parallel(self) -> int:
        """How many calls `run_parallel` makes at once. If that is more than one, the model is opened a second time. See D45."""
        if self._open_single is not None and self._at_once > 1 and self._parallel is None:
            single = self._open_single()
            padding = Padding(self._sizes)
            self._parallel = ParallelCalls(
                lambda feed: padding.run(feed, lambda piece: self._on(single, piece)), at_once=self._at_once
            )
        return self._parallel.at_once if self._parallel else 1

    def run_parallel(self, feeds: Sequence[Arrays], /) -> Iterator[Arrays]:
        """Make several calls at once and return their outputs in order. While a profile records, the calls run one by one."""
        recording = self._session is not self._serving
        return map(self.run, feeds) if recording or self._parallel is None else self._parallel.run(feeds)

    def profile(self, folder: Path) -> OnnxProfile | None:
        """A recorder of the calls between its `start` and `stop`; use it in the thread that runs the model."""
        return OnnxProfile(folder, open_twin=self._open_twin, swap=self._swap) if self._open_twin else None

    def _swap(self, session: Any) -> Any:
        former, self._session = self._session, session
        if self._binding is not None:
            self._binding = self._binding.around(session)
        return former


class Binding:
    """Runs a session with inputs and outputs in the device's memory. Input buffers are kept by shape, so that a batch allocates
    none.
    """

    # With buckets there are as many shapes as buckets. Without buckets the oldest buffers are dropped.
    _MOST = 32

    def __init__(self, library: Any, session: Any, device: str, index: int) -> None:
        self._library = library
        self._session = session
        self._device = device
        self._index = index
        self._held: dict[tuple[str, tuple[int, ...]], Any] = {}

    def around(self, session: Any) -> Binding:
        """A binding of another session that uses the same buffers."""
        other = Binding(self._library, session, self._device, self._index)
        other._held = self._held
        return other

    def run(self, feed: Arrays, outputs: list[str], options: Any = None) -> Arrays:
        binding = self._session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, self._filled(name, array))
        for name in outputs:
            binding.bind_output(name, self._device, self._index)
        self._session.run_with_iobinding(binding, options)
        return dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=True))

    def _filled(self, name: str, array: NDArray[Any]) -> Any:
        key = (name, array.shape)
        value = self._held.pop(key, None)
        if value is None:
            value = self._library.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, self._device, self._index)
        while len(self._held) >= self._MOST:
            self._held.pop(next(iter(self._held)))
        self._held[key] = value
        value.update_inplace(array)
        return value


def open_model(model: Path | bytes, context: Context) -> OnnxRuntime:
    """Open the model in a session.

    Raises `HandlerLoadError` without onnxruntime, for an unusable model, option or precision, and if another provider than the
    chosen one would run the model.
    """
    library = _library()
    refuse_foreign("onnx", context.runtime)
    session_table = context.runtime.session
    spin = spinning(threads=context.threads, usable_cores=_usable_cores(), version=library.__version__)
    config = session_config(session_table, threads=context.threads, spin=spin)
    cache = EngineCache(cache_folder(context.runtime.cache_dir, context.folder, os.environ))
    provider = chosen(model, context, config, cache=cache, version=library.__version__)
    preload(library, provider.kind)
    source = _source(model, context, cache)
    if provider.cache:
        cache.subfolder(provider.cache)

    # The session holds the model's bytes anyway, so that keeping a reference here costs nothing.
    def opened(profile: str = "", config: SessionConfig = config) -> Any:
        options = session_options(library, config, profile=profile)
        return _session(library, source, options, provider=provider, context=context, name=label(model))

    def single() -> Any:
        return opened(config=session_config(session_table, threads=1, spin=spinning(threads=1, usable_cores=1, version="")))

    with cache.locked(provider.cache) if provider.cache else _nothing():
        session = opened()
    return OnnxRuntime(
        session,
        buckets=context.runtime.batch_buckets,
        binding=_binding(library, session, provider),
        open_twin=opened,
        open_single=single,
        at_once=calls_at_once(flattened(session_table), provider=provider.kind, threads=context.threads),
        shrink=shrinking(library, provider, config),
    )


def shrinking(library: Any, provider: Provider, config: SessionConfig) -> Any:
    """The options of a run after which the device's memory arena gives back what it does not use; None without an arena."""
    is_cpu = provider.kind == "cpu"
    if is_cpu and not config.attributes.get("enable_cpu_mem_arena", True):
        return None
    options = library.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", f"{'cpu' if is_cpu else 'gpu'}:{provider.index}")
    return options


def _binding(library: Any, session: Any, provider: Provider) -> Binding | None:
    # Text cannot be in a device's memory.
    if provider.kind == "cpu" or any(given.type == "tensor(string)" for given in session.get_inputs()):
        return None
    return Binding(library, session, "cuda", provider.index)


def _nothing() -> AbstractContextManager[None]:
    return nullcontext()


def _library() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise HandlerLoadError(
            f"ONNX models need onnxruntime, which is not installed; run: {install_hint('onnx')} "
            f"(or '{requirement('onnx-gpu')}' for a GPU, never both)"
        ) from error
    return onnxruntime


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _source(model: Path | bytes, context: Context, cache: EngineCache) -> bytes | str:
    if context.runtime.quantize == "int8":
        from penstock.handlers.runtimes.onnx.quantized import quantized

        return quantized(model, cache)
    return model if isinstance(model, bytes) else str(model)


def _session(library: Any, source: bytes | str, options: Any, *, provider: Provider, context: Context, name: str) -> Any:
    if provider.kind != "cpu":
        options.add_session_config_entry(_RECORD, "1")
    try:
        with warnings.catch_warnings():
            # ONNX Runtime only warns about a provider that its build lacks; the check below refuses it.
            warnings.filterwarnings("ignore", message="Specified provider")
            session = library.InferenceSession(
                source, options, providers=list(provider.names), provider_options=list(provider.options), enable_fallback=0
            )
    except Exception as error:
        # ONNX Runtime's exceptions share no base class but Exception.
        words = str(error).strip()
        raise HandlerLoadError(f"ONNX Runtime cannot load {name}: {words}; {_advice(library, provider, words)}") from error
    _verify(library, session, provider, context)
    return session


def _advice(library: Any, provider: Provider, words: str) -> str:
    # ONNX Runtime loads the CUDA provider's library after the model, and continues without the provider if it is missing.
    reason = obstacle(library, provider.kind) if provider.kind == "tensorrt" else ""
    if reason:
        return reason
    if "CUDA failure" in words:
        return 'look at the GPU and its driver with nvidia-smi, or set device = "cpu"'
    return "check it with onnx.checker"


def _verify(library: Any, session: Any, provider: Provider, context: Context) -> None:
    # A GPU build of ONNX Runtime without its libraries falls back to the CPU and says so in one line on stderr only.
    first = session.get_providers()[0]
    if first != provider.names[0]:
        why = obstacle(library, provider.kind) or "its library can be loaded; what it lacks stands on standard error"
        raise HandlerLoadError(
            f"{provider.names[0]} on device {context.device!r} was asked for, but ONNX Runtime would use {first}: {why} "
            '(or set device = "cpu")'
        )
    # Older versions (before about 1.23) lack this method: there the providers are known, but not which node runs on which.
    if provider.kind == "cpu" or not hasattr(session, "get_provider_graph_assignment_info"):
        return
    parts = [
        (part.ep_name, [node.op_type for node in part.get_nodes()]) for part in session.get_provider_graph_assignment_info()
    ]
    elsewhere = fallen(parts, provider.names)
    if elsewhere:
        listed = ", ".join(f"{count} {operator}" for operator, count in sorted(elsewhere.items()))
        log.warning("%s leaves these nodes of %s to the CPU: %s", first, context.model, listed)


def _batch_sizes(axes: Mapping[str, int | str | None]) -> BatchSizes:
    fixed = {name: size for name, size in axes.items() if isinstance(size, int)}
    if len(set(fixed.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in fixed.items())
        raise HandlerLoadError(
            f"the first axes of the ONNX model's inputs differ ({listed}), and all must be the batch; "
            "export the model again with a dynamic batch axis"
        )
    size = next(iter(fixed.values()), None)
    return BatchSizes() if size is None else BatchSizes(size, size)


def _checked_output(name: str, kind: str) -> str:
    if not kind.startswith("tensor("):
        raise HandlerLoadError(
            f"output {name} of the ONNX model is a {kind}, and only tensors can be cut into rows; export it without. "
            "For a classifier of scikit-learn: to_onnx(model, ..., options={'zipmap': False})"
        )
    return name


def _output_ports(outputs: Sequence[Any]) -> list[Port]:
    """The outputs' types and shapes; empty if the file leaves one of them open."""
    if any(not output.shape or output.type == "tensor(bfloat16)" for output in outputs):
        return []
    return [_port(output.name, output.type, output.shape) for output in outputs]


def _port(name: str, kind: str, shape: list[int | str | None]) -> Port:
    element = kind.removeprefix("tensor(").removesuffix(")")
    if not shape:
        raise HandlerLoadError(f"input {name} of the ONNX model has no axis for the batch; export the model again with one")
    if element == "bfloat16":
        raise HandlerLoadError(
            f"input {name} of the ONNX model is bfloat16, which arrays cannot hold; export it with float inputs"
        )
    sizes = shape[1:]
    symbols = {axis: Symbol(size) for axis, size in enumerate(sizes) if size and isinstance(size, str)}
    fixed = tuple(size if isinstance(size, int) else None for size in sizes)
    return Port(name, _DTYPES.get(element, element), fixed, symbols=symbols)
