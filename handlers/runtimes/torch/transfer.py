"""Copies arrays to the device and back. On a GPU, pinned memory and separate streams let the copies overlap the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.handlers.runtimes.contract import DeviceRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]


class HostTransfer:
    """For the CPU: tensors share the memory of the arrays."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def to_device(self, given: Any) -> Any:
        return from_array(self._torch, given)

    def to_host(self, results: dict[str, Any]) -> Arrays:
        return {name: _plain(self._torch, result).numpy() for name, result in results.items()}


class CudaTransfer:
    """One stream for each direction. `upload` may run in another thread than `to_device` and `to_host`."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._up = torch.cuda.Stream(device)
        self._down = torch.cuda.Stream(device)

    def upload(self, feed: Arrays) -> list[dict[str, DeviceRow]]:
        """Start the copy of a whole batch. Returns one item per row, to be passed to `to_device` later."""
        rows = len(next(iter(feed.values())))
        with self._torch.cuda.stream(self._up):
            copies = {name: self._pinned(array).to(self._device, non_blocking=True) for name, array in feed.items()}
            arrived = self._up.record_event()
        return [{name: DeviceRow(copy, index, arrived) for name, copy in copies.items()} for index in range(rows)]

    def to_device(self, given: Any) -> Any:
        if not isinstance(given, list):
            return self._pinned(given).to(self._device, non_blocking=True)
        current = self._torch.cuda.current_stream(self._device)
        for row in {id(row.batch): row for row in given}.values():
            current.wait_event(row.arrived)
            # The memory belongs to the copy stream; without this call it could be reused while kernels still read it.
            row.batch.record_stream(current)
        return joined(self._torch, given)

    def to_host(self, results: dict[str, Any]) -> Arrays:
        """Wait for the copies, because the next call may overwrite what a CUDA graph wrote."""
        self._down.wait_stream(self._torch.cuda.current_stream(self._device))
        with self._torch.cuda.stream(self._down):
            copies = {name: self._copied(result) for name, result in results.items()}
        self._down.synchronize()
        return {name: copy.numpy() for name, copy in copies.items()}

    def _copied(self, result: Any) -> Any:
        plain = _plain(self._torch, result)
        host = self._torch.empty(plain.shape, dtype=plain.dtype, pin_memory=True)
        return host.copy_(plain, non_blocking=True)

    def _pinned(self, array: NDArray[Any]) -> Any:
        return from_array(self._torch, array).pin_memory()


def joined(torch: Any, rows: Sequence[DeviceRow]) -> Any:
    """The rows as one tensor: their uploaded batch if they are all of its rows in order, else copies of the rows."""
    batch = rows[0].batch
    if len(rows) == len(batch) and all(row.batch is batch and row.index == index for index, row in enumerate(rows)):
        return batch
    return torch.stack([row.batch[row.index] for row in rows])


def from_array(torch: Any, array: NDArray[Any]) -> Any:
    # torch has no read-only tensors and warns about read-only memory (np.frombuffer).
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _plain(torch: Any, result: Any) -> Any:
    """The array without its gradient; bfloat16 and float16 become float32, which callers can read."""
    return (result.float() if result.dtype in (torch.bfloat16, torch.float16) else result).detach()
