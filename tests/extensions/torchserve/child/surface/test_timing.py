"""`timed` records how long a stage takes where model-config.yaml asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.extensions.torchserve.child.surface.timing import timed
from penstock.handlers.metrics.metrics import HandlerMetrics

PROFILED = {"handler": {"profile": True}}


class Stages:
    context: Any = None

    @timed
    def preprocess(self, data: Any, *, scale: int = 1) -> Any:
        """The stage's own words."""
        return data * scale

    @timed
    def fail(self) -> None:
        raise ValueError("of its own")


@pytest.mark.parametrize("settings", [None, {}, {"handler": None}, {"handler": {}}, {"handler": {"profile": False}}, PROFILED])
def test_a_stage_is_timed_only_if_the_settings_ask_for_it(
    settings: Any, context: Callable[..., Any], counted: HandlerMetrics
) -> None:
    stages = Stages()
    stages.context = context(settings=settings)
    assert stages.preprocess(3, scale=2) == 6
    assert [sample.name for sample in counted.drain()] == (["ts_handler_preprocess"] if settings is PROFILED else [])


def test_a_stage_works_before_there_is_a_context() -> None:
    assert Stages().preprocess(3) == 3


def test_a_stage_that_raises_is_not_recorded(context: Callable[..., Any], counted: HandlerMetrics) -> None:
    stages = Stages()
    stages.context = context(settings=PROFILED)
    with pytest.raises(ValueError, match="of its own"):
        stages.fail()
    assert counted.drain() == []


def test_a_timed_stage_keeps_its_name_and_its_words() -> None:
    assert (Stages.preprocess.__name__, Stages.preprocess.__doc__) == ("preprocess", "The stage's own words.")
