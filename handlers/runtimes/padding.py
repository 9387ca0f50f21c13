"""Runs arrays at the sizes that a model accepts: pads them, and removes the padding from the outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.handlers.runtimes.batches import BatchSizes, BatchSlice, padding_ratio

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]


def padded(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array with `size` rows. The last row is repeated, because the model may not accept a row of zeros."""
    import numpy as np

    missing = size - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing > 0 else array


class Padding:
    """Pads and cuts each call. `ratio` is the share of padded rows in the last call."""

    def __init__(self, sizes: BatchSizes) -> None:
        self._sizes = sizes
        self.ratio = 0.0

    def run(self, feed: Arrays, run: Callable[[Arrays], Arrays]) -> Arrays:
        pieces = self._sizes.pieces(len(next(iter(feed.values()))))
        self.ratio = padding_ratio(pieces)
        return _joined([_run_piece(feed, piece, run) for piece in pieces])


def _run_piece(feed: Arrays, piece: BatchSlice, run: Callable[[Arrays], Arrays]) -> Arrays:
    outputs = run({name: padded(array[piece.start : piece.stop], piece.size) for name, array in feed.items()})
    rows = piece.stop - piece.start
    # An output without one row per item stays as it is: its reader refuses it by its name.
    return {name: array[:rows] if array.ndim and len(array) == piece.size else array for name, array in outputs.items()}


def _joined(outputs: Sequence[Arrays]) -> Arrays:
    import numpy as np

    first = outputs[0]
    if len(outputs) == 1:
        return first
    return {name: np.concatenate([part[name] for part in outputs]) if first[name].ndim else first[name] for name in first}
