from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.handlers.runtimes.buckets import Padding, bucket_for, padded


@pytest.mark.parametrize(("size", "bucket"), [(1, 4), (4, 4), (5, 16), (16, 16), (17, 17)])
def test_a_batch_goes_into_the_smallest_bucket_that_holds_it_and_a_larger_one_stays(size: int, bucket: int) -> None:
    assert bucket_for(size, [16, 4]) == bucket


def test_without_buckets_a_batch_runs_as_it_comes() -> None:
    assert bucket_for(3, []) == 3


def test_padding_repeats_the_last_row_also_of_text() -> None:
    assert padded(np.array([[1], [2]]), 4).tolist() == [[1], [2], [2], [2]]
    assert padded(np.array(["a", "b"], object), 3).tolist() == ["a", "b", "b"]
    assert padded(np.array([1, 2]), 2).tolist() == [1, 2]


class Model:
    """Doubles its input and notes the sizes it saw."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def run(self, feed: dict[str, Any]) -> dict[str, Any]:
        self.sizes.append(len(feed["x"]))
        return {"y": feed["x"] * 2, "seen": np.array(7)}


def test_what_was_padded_is_cut_back_and_counted() -> None:
    model, padding = Model(), Padding([4, 8])
    outputs = padding.run({"x": np.arange(5)}, model.run)
    assert outputs["y"].tolist() == [0, 2, 4, 6, 8]
    assert outputs["seen"] == 7
    assert model.sizes == [8]
    assert padding.ratio == 3 / 8
    padding.run({"x": np.arange(4)}, model.run)
    assert padding.ratio == 0


def test_more_rows_than_one_call_takes_run_in_parts() -> None:
    model, padding = Model(), Padding([4], limit=4)
    outputs = padding.run({"x": np.arange(6)}, lambda feed: {"y": model.run(feed)["y"]})
    assert outputs["y"].tolist() == [0, 2, 4, 6, 8, 10]
    assert model.sizes == [4, 4]
    assert padding.ratio == 2 / 8
