"""Batches at a few sizes only: which size a batch is padded to, the padding, and the cutting back. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]


def bucket_for(size: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `size` rows; `size` itself where none does."""
    return min((bucket for bucket in buckets if bucket >= size), default=size)


def padded(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array at `size` rows. The last row is repeated: a row the model is known to take, as zeros may not be."""
    import numpy as np

    missing = size - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing > 0 else array


class Padding:
    """Runs batches at bucket sizes, in parts where one call takes at most `limit` rows (0: any number)."""

    def __init__(self, buckets: Sequence[int], limit: int = 0) -> None:
        self._buckets = buckets
        self._limit = limit
        # The share of the rows run in the last call that were padding.
        self.ratio = 0.0

    def run(self, feed: Arrays, run: Callable[[Arrays], Arrays]) -> Arrays:
        size = min((len(array) for array in feed.values()), default=0)
        starts = range(0, size, self._limit or size or 1)
        parts = [{name: array[start : start + starts.step] for name, array in feed.items()} for start in starts] or [feed]
        sizes = [min(starts.step, size - start) for start in starts] or [0]
        ran = [bucket_for(rows, self._buckets) for rows in sizes]
        self.ratio = 1 - size / sum(ran) if sum(ran) else 0.0
        return _joined([_run_padded(part, bucket, run) for part, bucket in zip(parts, ran, strict=True)])


def _run_padded(feed: Arrays, bucket: int, run: Callable[[Arrays], Arrays]) -> Arrays:
    size = min((len(array) for array in feed.values()), default=0)
    if bucket <= size:
        return run(feed)
    outputs = run({name: padded(array, bucket) for name, array in feed.items()})
    # What has not one row per item stays as it is: whoever reads it says so with its name.
    return {name: array[:size] if array.ndim and len(array) == bucket else array for name, array in outputs.items()}


def _joined(outputs: Sequence[Arrays]) -> Arrays:
    import numpy as np

    if len(outputs) == 1:
        return outputs[0]
    return {name: np.concatenate([part[name] for part in outputs]) for name in outputs[0]}
