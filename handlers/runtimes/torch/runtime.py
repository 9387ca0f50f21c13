"""A loaded torch model as a `Runtime`: batches cut and padded, inputs in the model's dtypes, outputs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import HandlerContractError
from penstock.handlers.runtimes.batches import BatchSizes, BatchSlice, padding_ratio
from penstock.handlers.runtimes.contract import DeviceRow, Port, Runtime
from penstock.handlers.runtimes.torch.transfer import CudaTransfer, HostTransfer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

Upload = Callable[["Arrays"], list[dict[str, DeviceRow]]]


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """How a program is called: the inputs' torch dtypes, the batch sizes, and the axes that are marked as changing for
    torch.compile.
    """

    ports: tuple[Port, ...]
    dtypes: tuple[Any, ...]
    sizes: BatchSizes
    names: tuple[str, ...] = ()
    channels_last: bool = False
    marks_batch: bool = False


class TorchRuntime(Runtime):
    """`padding_ratio` is the share of padded rows in the last call; the opener sets `first_call_s`.

    On a GPU `upload` starts the copy of a batch that runs later; `run` then takes its rows in place of an array.
    """

    def __init__(
        self, torch: Any, call: Callable[[Sequence[Any]], Any], program_call: ProgramCall, *, transfer: Any, provider: str
    ) -> None:
        self._torch = torch
        self._call = call
        self._program_call = program_call
        self._transfer: HostTransfer | CudaTransfer = transfer
        self.provider = provider
        self.inputs = list(program_call.ports)
        # The first call fills them unless the options name them.
        self.outputs = list(program_call.names)
        self.stacks = program_call.sizes.high != 1
        self.padding_ratio = 0.0
        self.first_call_s = 0.0
        self.upload: Upload | None = transfer.upload if isinstance(transfer, CudaTransfer) else None

    def run(self, feed: Mapping[str, Any], /) -> Arrays:
        """Raises `HandlerContractError` for an output that is no tensor, or that lacks one row per item."""
        rows = len(next(iter(feed.values())))
        pieces = self._program_call.sizes.pieces(rows)
        with self._torch.inference_mode():
            given = self.tensors(feed)
            parts = [self._run_piece(given, piece) for piece in pieces]
        self.padding_ratio = padding_ratio(pieces)
        return parts[0] if len(parts) == 1 else _chained(parts)

    def tensors(self, feed: Mapping[str, Any], /) -> list[Any]:
        """The inputs on the device, in the order of the ports."""
        return [self._transfer.to_device(feed[port.name]) for port in self._program_call.ports]

    def _run_piece(self, given: Sequence[Any], piece: BatchSlice) -> Arrays:
        return self._transfer.to_host(self._answers(given, piece))

    def _answers(self, given: Sequence[Any], piece: BatchSlice) -> dict[str, Any]:
        tensors = [
            self._prepared(tensor[piece.start : piece.stop], dtype, piece.size)
            for tensor, dtype in zip(given, self._program_call.dtypes, strict=True)
        ]
        results = named(self._call(tensors), self._program_call.names)
        self.outputs = self.outputs or list(results)
        for name, result in results.items():
            _check_rows(name, result, piece.size)
        return {name: result[: piece.stop - piece.start] for name, result in results.items()}

    def _prepared(self, rows: Any, dtype: Any, size: int) -> Any:
        # Pad with the last row and not with zeros, so that the values are ones that the model was made for.
        missing = size - len(rows)
        padded = self._torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])]) if missing else rows
        tensor = padded.to(dtype)
        if self._program_call.channels_last and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=self._torch.channels_last)
        # torch always compiles size 1 separately, and refuses a mark that says this size may change.
        if self._program_call.marks_batch and size > 1:
            self._torch._dynamo.mark_dynamic(tensor, 0)
        return tensor


class DifferentiableRuntime(TorchRuntime):
    """A runtime with gradients: its inputs are real numbers, and it has no quantized layers."""

    def forward(self, given: Sequence[Any], /) -> dict[str, Any]:
        """Like `run`, but from tensors to tensors and with gradients, from which explanations are computed."""
        parts = [self._answers(given, piece) for piece in self._program_call.sizes.pieces(len(given[0]))]
        return {name: self._torch.cat([part[name] for part in parts]) for name in parts[0]}


def named(result: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """A model's outputs by name: its own names, else `output`, or `output_0` and so on. `names` replace them in order.

    Raises `HandlerContractError` for anything but a tensor, or a flat sequence or table of tensors.
    """
    outputs = {name: value for name, value in _items(result) if value is not None}
    odd = [f"{name} is a {type(value).__name__}" for name, value in outputs.items() if not hasattr(value, "dtype")]
    if odd or not outputs:
        raise HandlerContractError(
            f"the model must return tensors, alone or in a flat list or dict; {', '.join(odd) or 'it returned none'}"
        )
    if names and len(names) != len(outputs):
        raise HandlerContractError(f"options.outputs names {len(names)} outputs, and the model returns {len(outputs)}")
    return dict(zip(names or outputs, outputs.values(), strict=True))


def _items(result: Any) -> list[tuple[str, Any]]:
    if isinstance(result, Mapping):
        return [(str(name), value) for name, value in result.items()]
    if hasattr(result, "_fields"):
        return list(zip(result._fields, result, strict=True))
    if is_dataclass(result):
        return [(field.name, getattr(result, field.name)) for field in fields(result)]
    if isinstance(result, (list, tuple)) and len(result) != 1:
        return [(f"output_{index}", value) for index, value in enumerate(result)]
    return [("output", result[0] if isinstance(result, (list, tuple)) else result)]


def _check_rows(name: str, result: Any, size: int) -> None:
    if not result.dim() or len(result) != size:
        raise HandlerContractError(
            f"output {name} has shape {tuple(result.shape)} for a batch of {size}; its first axis must be the batch"
        )


def _chained(parts: Sequence[Arrays]) -> Arrays:
    import numpy as np

    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
