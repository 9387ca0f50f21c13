"""A pipeline that is declared in code: the same table as in settings, with the sources of its models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Handler
from penstock.errors import ConfigError
from penstock.extensions.pipelines.settings import PipelineSettings

HERE = Path(__file__).resolve()


@penstock.model
def find_boxes(item: dict[str, Any]) -> dict[str, Any]:
    return item


@penstock.model(name="joints")
def find_joints(item: dict[str, Any]) -> dict[str, Any]:
    return item


class Draw(Handler):
    def inference(self, batch: list[Any], /) -> list[Any]:
        return batch


def test_stages_follow_one_another_and_models_are_named_after_their_objects() -> None:
    found = penstock.pipeline("people", {"a": find_boxes, "b": find_joints, "c": Draw, "d": "elsewhere"}, deadline_s=60)
    assert [(stage.name, stage.model, stage.after) for stage in found.spec.stages] == [
        ("a", "find-boxes", ()),
        ("b", "joints", ("a",)),
        ("c", "draw", ("b",)),
        ("d", "elsewhere", ("c",)),
    ]
    assert found.models == {"find-boxes": f"{HERE}:find_boxes", "joints": f"{HERE}:find_joints", "draw": f"{HERE}:Draw"}


def test_the_table_is_that_of_settings() -> None:
    found = penstock.pipeline(
        "people",
        {
            "a": find_boxes,
            "b": penstock.stage(Draw, input={"image": "input", "boxes": "a.boxes"}, form=True),
            "c": penstock.stage(find_joints, after=["a"], version="2"),
        },
        output={"b": "b", "c": "c.joints"},
        at_once=8,
    )
    table = PipelineSettings.model_validate(found.table)
    assert table.pipeline().stages == found.spec.stages
    assert (table.at_once, table.output) == (8, {"b": "b", "c": "c.joints"})


def test_what_is_wrong_with_the_stages_is_said_at_once_as_for_settings() -> None:
    with pytest.raises(ConfigError) as refused:
        penstock.pipeline("p", {"a": find_boxes, "b": penstock.stage(Draw, after=["nobody"], input="a.b..c")}, output="z")
    said = " ".join(refused.value.faults)
    assert "after names 'nobody'" in said
    assert "has an empty part" in said
    assert "output names 'z'" in said


@pytest.mark.parametrize("model", [3, lambda item: item, object()])
def test_what_cannot_be_served_is_refused(model: object) -> None:
    with pytest.raises(ConfigError, match="cannot be served"):
        penstock.pipeline("p", {"a": model})


def test_two_models_of_one_name_are_refused() -> None:
    @penstock.model(name="draw")
    def other(item: Any) -> Any:
        return item

    with pytest.raises(ConfigError, match="two models are called 'draw'"):
        penstock.pipeline("p", {"a": Draw, "b": other})
