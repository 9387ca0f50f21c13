"""The contract of a runtime, and the choice of a runtime by the kind of file. A runtime's library is imported once it is
chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.symbols import Symbol
from penstock.inputs.input_shape import shape_fits
from penstock.model_spec import RuntimeOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

# D32: docs/design/runtimes.md
# Ending of the model file -> its runtimes. The first one is the default; the setting `runtime` selects another.
KINDS: dict[str, tuple[str, ...]] = {
    ".onnx": ("onnx", "tensorrt"),
    ".plan": ("tensorrt",),
    ".engine": ("tensorrt",),
    ".pt2": ("torch",),
    ".pt": ("torch",),
    ".pth": ("torch",),
    ".ts": ("torch",),
    ".safetensors": ("torch",),
}
_OPENERS = {
    "onnx": "penstock.handlers.runtimes.onnx.runtime",
    "tensorrt": "penstock.handlers.runtimes.tensorrt.runtime",
    "torch": "penstock.handlers.runtimes.torch.opener",
}
# Option -> the runtimes that have it, for the options that not every runtime has.
_OWNERS = {
    "provider": ("onnx",),
    "quantize": ("onnx", "torch"),
    "compile": ("torch",),
    "channels_last": ("torch",),
    "cuda_graphs": ("torch",),
}


@dataclass(frozen=True, slots=True)
class Port:
    """One input of the model without its batch axis; None in `shape` is a free dimension.

    `bounds` maps an axis to the smallest and largest size of its free dimension, where the model states them. `symbols` says
    which free dimensions belong together; a symbol's name is the file's own choice, so two ports do not differ by it.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    bounds: Mapping[int, tuple[int, int | None]] = field(default_factory=dict)
    symbols: Mapping[int, Symbol] = field(default_factory=dict, compare=False)

    def fits(self, shape: Sequence[int]) -> bool:
        return shape_fits(shape, self.limits())

    def limits(self) -> list[tuple[int, int | None]]:
        """Smallest and largest size of every dimension; None: no largest."""
        return [self.bounds.get(axis, (1, None)) if size is None else (size, size) for axis, size in enumerate(self.shape)]


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One item's part of an input that is being copied to the device: row `index` of `batch`, complete once `arrived` has
    passed.
    """

    batch: Any
    index: int
    arrived: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.batch.shape[1:])


@runtime_checkable
class Runtime(Protocol):
    """A loaded model. `provider` names what really runs it. If `stacks` is false, items run one at a time.

    Some attributes are optional. `upload(feed)` starts the copy of a batch to the device and returns one `DeviceRow` per item
    and input, and `run` takes lists of them in place of arrays; `padding_ratio` is the share of padded rows in the last run;
    `first_call_s` is the time of the smallest batch in seconds if opening the model made that call, else 0. `output_ports` are
    the outputs, where the file states their types and shapes.
    """

    provider: str
    inputs: Sequence[Port]
    outputs: Sequence[str]
    stacks: bool

    def run(self, feed: Arrays, /) -> Arrays:
        """Run one batch: an array per input in, an array per output out, each with the batch as its first axis."""

    def open_parallel(self) -> int:
        """Prepare for `run_parallel` and return how many calls it makes at once; 1 if more would gain nothing."""
        return 1

    def run_parallel(self, feeds: Sequence[Arrays], /) -> Iterator[Arrays]:
        """The outputs of several calls, in the order of the feeds, which is also the order in which they begin."""
        return map(self.run, feeds)

    def profile(self, folder: Path) -> Any:
        """A recorder that writes this model's calls into `folder`; None if the library's own profiler records them."""
        return None


def open_runtime(model: Path | bytes, context: Context) -> Runtime:
    """The model in `model` (a file, or an ONNX model in memory) on the context's device, by `context.runtime`.

    Raises `HandlerLoadError` for a missing file, an unknown kind, an absent library, or a device that would not be used.
    """
    if isinstance(model, Path) and not model.exists():
        raise HandlerLoadError(f"there is no model file {model}; check its name (it is looked for next to the handler)")
    opener: Callable[[Path | bytes, Context], Runtime] = import_module(_OPENERS[chosen_runtime(model, context)]).open_model
    return opener(model, context)


def refuse_foreign(runtime: str, options: RuntimeOptions) -> None:
    """Refuse options that are set and that this runtime would ignore, by a `HandlerLoadError`."""
    defaults = RuntimeOptions()
    for name, owners in _OWNERS.items():
        value = getattr(options, name)
        if runtime not in owners and value != getattr(defaults, name):
            raise HandlerLoadError(
                f"{name} = {value!r} is an option of the runtime {owners[0]}, not of {runtime}; leave it out"
            )


def is_model_file(path: str) -> bool:
    return path.lower().endswith(tuple(KINDS))


def kind_of(path: Path | str) -> str:
    """The ending by which `KINDS` knows a model file, in lower case: `.onnx` for `MODEL.ONNX`."""
    return Path(path).suffix.lower()


def chosen_runtime(model: Path | bytes, context: Context) -> str:
    """The runtime for this file and these settings. Raises `HandlerLoadError` if the two do not fit together."""
    suffix = kind_of(model) if isinstance(model, Path) else ".onnx"
    runtimes = KINDS.get(suffix)
    wish = context.runtime.runtime
    if runtimes is None:
        raise HandlerLoadError(f"{model!s} is no model file known here; its name must end in {', '.join(KINDS)}")
    if wish != "auto" and wish not in runtimes:
        raise HandlerLoadError(f"runtime {wish!r} cannot run a {suffix} file; leave it out, or use {' or '.join(runtimes)}")
    chosen = runtimes[0] if wish == "auto" else wish
    if chosen not in _OPENERS:
        raise HandlerLoadError(f"runtime {chosen!r} is not part of this version; leave `runtime` out")
    return chosen
