from __future__ import annotations

from typing import Any

import numpy as np

from penstock.handlers.runtimes.batches import BatchSizes
from penstock.handlers.runtimes.padding import Padding, padded


def test_padding_repeats_the_last_row_also_of_text() -> None:
    assert padded(np.array([[1], [2]]), 4).tolist() == [[1], [2], [2], [2]]
    assert padded(np.array(["a", "b"], object), 3).tolist() == ["a", "b", "b"]
    assert padded(np.array([1, 2]), 2).tolist() == [1, 2]


class Model:
    """A model that doubles its input and records the sizes of its batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def run(self, feed: dict[str, Any]) -> dict[str, Any]:
        self.sizes.append(len(feed["x"]))
        return {"y": feed["x"] * 2, "seen": np.array(7)}


def test_what_was_padded_is_cut_back_and_counted() -> None:
    model, padding = Model(), Padding(BatchSizes(buckets=(4, 8)))
    outputs = padding.run({"x": np.arange(5)}, model.run)
    assert outputs["y"].tolist() == [0, 2, 4, 6, 8]
    assert outputs["seen"] == 7
    assert model.sizes == [8]
    assert padding.ratio == 3 / 8
    padding.run({"x": np.arange(4)}, model.run)
    assert padding.ratio == 0


def test_more_rows_than_the_largest_bucket_run_in_parts() -> None:
    model, padding = Model(), Padding(BatchSizes(buckets=(4,)))
    outputs = padding.run({"x": np.arange(6)}, model.run)
    assert outputs["y"].tolist() == [0, 2, 4, 6, 8, 10]
    assert outputs["seen"] == 7
    assert model.sizes == [4, 4]
    assert padding.ratio == 2 / 8
