"""The contract of a runtime, and the choice of one by the kind of file. A runtime's library is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.symbols import Symbol
from penstock.model_spec import RuntimeOptions
from penstock.shapes import shape_fits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

# Model file by its ending -> runtime; the first runtime of a kind is the default, the others can be asked for by `runtime`.
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
# Options that some runtimes have and others do not -> the runtimes that have them.
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

    `bounds` holds the smallest and largest size of free dimensions by axis, where the model says them; `symbols` which of them
    go together. Their names are the file's own, so ports do not differ by them.
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
    """One item's part of an input that is already on its way to the device: row `place` of `batch`, there after `arrived`."""

    batch: Any
    place: int
    arrived: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.batch.shape[1:])


@runtime_checkable
class Runtime(Protocol):
    """A loaded model. `provider` is what really runs it; `stacks` says whether items run together (else one at a time).

    Some attributes are optional. `upload(feed)` starts the copy of a batch to the device and returns one `DeviceRow` per item
    and input, lists of which `run` takes in place of arrays; `padding_ratio` is the share of padded rows in the last run;
    `first_call_s` is how long its smallest batch took in seconds, where opening it made that call (else 0).
    """

    provider: str
    inputs: Sequence[Port]
    outputs: Sequence[str]
    stacks: bool

    def run(self, feed: Arrays, /) -> Arrays:
        """One array per output for one array per input, all with the batch as first axis."""

    def open_parallel(self) -> int:
        """How many calls `run_parallel` makes at once from now on; 1 where more would gain nothing."""
        return 1

    def run_parallel(self, feeds: Sequence[Arrays], /) -> Iterator[Arrays]:
        """The outputs of several calls, in the order of the feeds, which is also the order in which they begin."""
        return map(self.run, feeds)

    def profile(self, folder: Path) -> Any:
        """What records this model's calls into a folder; None where the profiler of the library around it does."""
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
    """Raises `HandlerLoadError` for an option that is set and that this runtime does not have: it would be ignored."""
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
    """The ending that says what a model file is, as in `KINDS`: `MODEL.ONNX` is what `model.onnx` is."""
    return Path(path).suffix.lower()


def chosen_runtime(model: Path | bytes, context: Context) -> str:
    """By the file's ending and the settings; raises `HandlerLoadError` where they do not go together."""
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
