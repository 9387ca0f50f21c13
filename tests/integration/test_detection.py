"""The detection example finds the objects that were drawn, in every runtime and precision."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.load import load
from penstock.handlers.tasks.boxes import overlap
from penstock.model_spec import RuntimeOptions
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Failed, Item

pytest.importorskip("torch", reason="the network is exported by torch: pip install 'penstock-inference[torch]'")
pytest.importorskip("onnxscript", reason="torch's ONNX exporter needs it: pip install onnxscript")

DETECTION = Path(__file__).resolve().parents[2] / "examples" / "detection"
SEEDS = range(3)
# The tolerances are in pixels of pictures 1,280 wide; bf16 has 8 bits of mantissa.
TOLERANCES = {("torch", "fp32"): 0.01, ("onnx", "fp32"): 0.01, ("torch", "bf16"): 8.0}


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, Any]]:
    """Yield the example's own modules, and forget them afterwards, because other examples have files of the same names."""
    path = list(sys.path)
    sys.path.insert(0, str(DETECTION))
    yield {name: importlib.import_module(name) for name in ("scenes", "net", "export")}
    sys.path[:] = path
    for name in ("scenes", "net", "export"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def files(modules: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    export = modules["export"]
    folder = tmp_path_factory.mktemp("detection")
    export.export(folder, net=export.seeded(widths=export.SMALL_WIDTHS))
    return folder


def discs(files: Path, runtime: str, precision: str) -> Any:
    chosen = RuntimeOptions(runtime=runtime, precision=precision)
    return load(str(DETECTION / "handler.py"), "discs", options={"files": str(files)}, runtime=chosen)


def found(loaded: Any, pictures: list[bytes]) -> list[Any]:
    outcomes = run_batch(loaded, [Item("image/jpeg", picture) for picture in pictures]).outcomes
    return [json.loads(outcome.data) for outcome in outcomes if not isinstance(outcome, Failed)]


@pytest.fixture(scope="module")
def pictures(modules: dict[str, Any]) -> list[tuple[bytes, Any]]:
    return [modules["scenes"].scene(seed) for seed in SEEDS]


@pytest.fixture(scope="module")
def reference(files: Path, pictures: list[tuple[bytes, Any]]) -> list[Any]:
    return found(discs(files, "torch", "fp32"), [picture for picture, _ in pictures])


def test_every_disc_drawn_is_found_where_it_is_and_no_other(reference: list[Any], pictures: list[tuple[bytes, Any]]) -> None:
    for answer, (_, drawn) in zip(reference, pictures, strict=True):
        assert sorted(one["label"] for one in answer) == sorted(disc.label for disc in drawn)
        for disc in drawn:
            boxes = np.array([list(one["box"].values()) for one in answer if one["label"] == disc.label])
            assert overlap(np.array(disc.box), boxes).max() > 0.8


@pytest.mark.parametrize(("runtime", "precision"), TOLERANCES)
def test_every_runtime_and_precision_finds_the_same(
    files: Path, reference: list[Any], pictures: list[tuple[bytes, Any]], runtime: str, precision: str
) -> None:
    answers = found(discs(files, runtime, precision), [picture for picture, _ in pictures])
    for answer, wanted in zip(answers, reference, strict=True):
        assert {one["label"] for one in answer} == {one["label"] for one in wanted}
        assert len(answer) == len(wanted)
        for one in wanted:
            # Boxes are matched by position, because two boxes of almost equal score may change places.
            same = min(answer, key=lambda each: distance(each, one))
            assert distance(same, one) <= TOLERANCES[runtime, precision]


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference between the boxes' numbers, in pixels; infinite for another label."""
    if one["label"] != other["label"]:
        return float("inf")
    return max(float(abs(one["box"][name] - other["box"][name])) for name in one["box"])


def test_without_model_files_the_error_says_how_to_write_them(tmp_path: Path) -> None:
    with pytest.raises(HandlerLoadError, match=r"export\.py"):
        discs(tmp_path, "onnx", "fp32")


def test_a_picture_of_too_many_pixels_fails_alone(files: Path, modules: dict[str, Any]) -> None:
    loaded = load(str(DETECTION / "handler.py"), "discs", options={"files": str(files), "max_pixels": 500_000})
    scene = modules["scenes"].scene
    items = [Item("image/jpeg", scene(1, size)[0]) for size in ((1280, 960), (640, 480))]
    large, small = run_batch(loaded, items).outcomes
    assert isinstance(large, Failed)
    assert large.code == "invalid_input"
    assert not isinstance(small, Failed)
    assert json.loads(small.data)
