"""docs/images: each drawing is what its source draws, and every path that its tables name exists."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from typing import Any

import pytest

from docs.images import catalogue, concepts
from tests.markdown import PAGES, ROOT, links

IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def draw() -> Any:
    spec = importlib.util.spec_from_file_location("docs_images_draw", IMAGES / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["house", "job"])
def test_a_picture_is_what_its_source_draws(draw: Any, name: str) -> None:
    drawn = getattr(draw, name)()
    assert (IMAGES / f"{name}.svg").read_text("utf-8") == drawn, "run `python docs/images/draw.py`"


def test_the_picture_of_the_concepts_is_what_its_source_draws() -> None:
    assert (IMAGES / "concepts.svg").read_text("utf-8") == concepts.concepts(), "run `python -m docs.images.concepts`"


def test_the_layers_of_the_house_are_those_that_import_linter_holds(draw: Any) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract.get("containers") == ["penstock"]]
    held = [
        set(layer.split(" | "))
        for layer in layers
        if layer.split(" | ")[0] not in ("__main__", "settings", "inputs", "rollout : run : shard : tensors : model_cache")
    ]
    shown = [{folder.name for folder in layer} for layer in draw.LAYERS[:-1]]
    assert held[: len(shown)] == shown


def test_the_files_of_a_jobs_way_exist(draw: Any) -> None:
    assert [step.file for step in draw.STEPS if not (ROOT / step.file).is_file()] == []


def test_make_pictures_names_every_picture_of_the_pages_and_no_other() -> None:
    made = {*catalogue.DRAWN, *catalogue.MEASURED, *catalogue.PHOTOGRAPHED, *catalogue.RECORDED}
    pages = [(page, link) for page in PAGES for link in links(page) if link.endswith((".png", ".svg")) and ":" not in link]
    shown = {(page.parent / link).resolve().relative_to(ROOT).as_posix() for page, link in pages}
    kept = {path.relative_to(ROOT).as_posix() for ending in ("png", "svg") for path in (ROOT / "docs").rglob(f"*.{ending}")}
    assert shown == made == kept
