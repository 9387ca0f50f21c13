"""Inputs are uploaded while another batch runs: grouped by shape and joined again, on any runtime that can upload."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from penstock.handlers.array_handler import ArrayHandler
from penstock.handlers.contract import Context, Failure
from penstock.handlers.media import plain_all
from penstock.handlers.runtimes.contract import DeviceRow, Port, Runtime, open_runtime
from penstock.model_spec import RuntimeOptions

torch = pytest.importorskip("torch")
from penstock.handlers.runtimes.torch.transfer import joined  # noqa: E402
from tests.unit.handlers.runtimes.torch import nets  # noqa: E402


def rows_of(batch: Any) -> list[DeviceRow]:
    return [DeviceRow(batch, place) for place in range(len(batch))]


def test_a_whole_batch_is_joined_without_a_copy() -> None:
    batch = torch.arange(12).reshape(4, 3)
    assert joined(torch, rows_of(batch)) is batch
    assert rows_of(batch)[0].shape == (3,)


@pytest.mark.parametrize("places", [[0, 1, 2], [1, 0, 2, 3], [3], [0, 0, 1, 2]])
def test_a_part_of_a_batch_is_joined_in_its_own_order(places: list[int]) -> None:
    batch = torch.arange(12).reshape(4, 3)
    rows = rows_of(batch)
    assert joined(torch, [rows[place] for place in places]).tolist() == [batch[place].tolist() for place in places]


def test_rows_of_several_batches_are_joined() -> None:
    first, second = torch.zeros(2, 3), torch.ones(2, 3)
    found = joined(torch, [rows_of(first)[0], rows_of(second)[1]])
    assert found.tolist() == [[0, 0, 0], [1, 1, 1]]


class Distant:
    """A runtime that keeps its inputs elsewhere, like a runtime on a GPU; it doubles them and counts the uploads."""

    provider = "distant"
    inputs = (Port("x", "float32", (None,)),)
    outputs = ("y",)
    stacks = True

    def __init__(self) -> None:
        self.uploads: list[tuple[int, ...]] = []

    def upload(self, feed: dict[str, Any]) -> list[dict[str, DeviceRow]]:
        self.uploads.append(feed["x"].shape)
        return [{"x": row} for row in rows_of(torch.from_numpy(feed["x"]))]

    def run(self, feed: dict[str, Any], /) -> dict[str, Any]:
        given = feed["x"]
        held = joined(torch, given) if isinstance(given, list) else torch.from_numpy(given)
        return {"y": (held * 2).numpy()}


def handler() -> ArrayHandler:
    made = ArrayHandler()
    made.runtime = cast("Runtime", Distant())
    return made


def test_preprocess_uploads_each_shape_as_one_batch_and_leaves_failures_alone() -> None:
    made = handler()
    items = made.preprocess([[1], ["bad"], [1, 2], [3]])
    assert isinstance(items[1], Failure)
    assert made.runtime.uploads == [(2, 1), (1, 2)]  # type: ignore[attr-defined]
    answers = made.inference([item for item in items if not isinstance(item, Failure)])
    assert plain_all(made.postprocess(answers)) == [{"y": [2]}, {"y": [2, 4]}, {"y": [6]}]


def test_the_halves_of_an_uploaded_batch_can_run_alone() -> None:
    made = handler()
    items = made.preprocess([[1], [2], [3]])
    assert plain_all(made.postprocess(made.inference(items[1:]))) == [{"y": [4]}, {"y": [6]}]


def test_arrays_that_were_not_uploaded_run_all_the_same() -> None:
    made = handler()
    assert plain_all(made.postprocess(made.inference([{"x": np.ones(2, np.float32)}]))) == [{"y": [2, 2]}]
    assert made.runtime.uploads == []  # type: ignore[attr-defined]


def test_on_the_cpu_nothing_is_uploaded(tmp_path: Path) -> None:
    nets.save_perceptron(tmp_path / "net.pt2", {"x": {0: nets.batch_axis()}})
    made = ArrayHandler()
    made.model_file = "net.pt2"
    made.initialize(Context("net", folder=tmp_path, runtime=RuntimeOptions(batch_buckets=(4,))))
    items = made.preprocess([[1, 2, 3, 4]])
    assert isinstance(items[0]["x"], np.ndarray)
    made.inference(items)
    assert made.padding_ratio() == pytest.approx(3 / 4)
    assert open_runtime(tmp_path / "net.pt2", Context("net")).upload is None  # type: ignore[attr-defined]
