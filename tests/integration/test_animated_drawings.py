"""The example of a pipeline finds the joints that were drawn: its stages by their real handlers, as its settings join them."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from penstock.extensions.pipelines.spec import INPUT, pipeline_of
from penstock.extensions.pipelines.worker.binding import bound_input, bound_result
from penstock.handlers.load import load
from penstock.job import Payload
from penstock.outputs.bundle import BUNDLE_MEDIA, decode_head, head_length, with_files
from penstock.outputs.media import Media
from penstock.settings.tables import Settings
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Failed, Item

pytest.importorskip("torch", reason="the networks are exported by torch: pip install 'penstock-inference[torch]'")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "animated_drawings"
# In pixels of pictures 1,280 wide, whose dots are some 30 wide.
TOLERANCE = 12.0
_OWN = ("drawings", "export", "pose_net", "net", "scenes")


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, Any]]:
    """Yield the example's own modules, and forget them afterwards, because other examples have files of the same names."""
    path = list(sys.path)
    sys.path.insert(0, str(EXAMPLE))
    for name in _OWN:
        sys.modules.pop(name, None)
    yield {name: importlib.import_module(name) for name in ("drawings", "export")}
    sys.path[:] = path
    for name in _OWN:
        sys.modules.pop(name, None)


class Example:
    """The pipeline of the example's settings with small networks; each stage runs its handler here."""

    def __init__(self, files: Path) -> None:
        settings = Settings.load(EXAMPLE / "penstock.toml", {}, need_files=True)
        [spec] = settings.driven_specs()
        pipeline = pipeline_of(spec)
        assert pipeline is not None
        self.pipeline = pipeline
        options = {"figures": {"files": str(files / "detector")}, "pose": {"files": str(files)}, "skeleton": {}}
        self._models = {one.name: load(one.source, one.name, options=options[one.name]) for one in settings.specs()}

    def run(self, picture: bytes, media: str = "image/jpeg") -> Any:
        """The result, or the stage that failed and why."""
        values = {INPUT: Payload(media, picture)}
        for stage in self.pipeline.stages:
            given = bound_input(self.pipeline.wanted(stage), values, lambda one: one.data)
            [outcome] = run_batch(self._models[stage.model], [Item(given.content_type, given.data)]).outcomes
            if isinstance(outcome, Failed):
                return stage.name, outcome.code, outcome.message
            values[stage.name] = Payload(outcome.content_type, outcome.data)
        return _unbundled(bound_result(self.pipeline.result(), values, lambda one: one.data))


def _unbundled(result: Payload) -> Any:
    assert result.content_type == BUNDLE_MEDIA
    end = 4 + head_length(result.data[:4])
    bundle = decode_head(result.data[4:end])
    files = [result.data[span.start : span.end] for _, span in bundle.files]
    return with_files(json.loads(result.data[bundle.json.start : bundle.json.end]), files)


@pytest.fixture(scope="module")
def example(modules: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Example:
    folder = tmp_path_factory.mktemp("drawings")
    modules["export"].export(folder, modules["export"].SMALL_WIDTHS)
    return Example(folder)


def test_joints_and_picture_come_back_and_the_joints_are_where_they_were_drawn(
    example: Example, modules: dict[str, Any]
) -> None:
    for seed in range(4):
        drawn = modules["drawings"].drawing(seed)
        found = example.run(drawn.jpeg)
        places = {name: (joint["x"], joint["y"]) for name, joint in found["joints"].items()}
        assert places == {name: pytest.approx(place, abs=TOLERANCE) for name, place in drawn.joints.items()}
        picture = found["picture"]
        assert isinstance(picture, Media)
        assert (picture.content_type, picture.filename) == ("image/jpeg", "skeleton.jpg")
        assert Image.open(io.BytesIO(bytes(picture.data))).size == modules["drawings"].SIZE


def test_a_picture_without_a_figure_fails_at_the_stage_that_looks_for_its_joints(example: Example) -> None:
    empty = io.BytesIO()
    Image.new("RGB", (640, 480), "grey").save(empty, "PNG")
    assert example.run(empty.getvalue(), "image/png") == ("joints", "bad_drawing", "there is no figure in the picture")
