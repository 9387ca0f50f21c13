"""Who chooses the version of requests that name none, where several extensions could."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.backlog import SlotCapacity
from penstock.gateway.models.parts import Headers, ModelsPart, VersionChooser, chooser_of
from penstock.gateway.models.registry import VersionEntry
from penstock.rollout import Rollout

FIRST = VersionEntry("1", None, None, SlotCapacity(), chosen={"first": "word"})


class AlwaysFirst:
    def choose(self, headers: Headers) -> VersionEntry:
        return FIRST


def of_one_model(model: str, rollout: Rollout, versions: Mapping[str, VersionEntry]) -> VersionChooser | None:
    return AlwaysFirst() if model == "m" else None


def of_all(model: str, rollout: Rollout, versions: Mapping[str, VersionEntry]) -> VersionChooser | None:
    raise AssertionError("the first chooser has chosen")


def test_without_an_extension_the_default_version_gets_the_requests() -> None:
    assert chooser_of((), "m", Rollout(), {}) is None
    assert chooser_of((ModelsPart(),), "m", Rollout(), {}) is None


def test_the_first_extension_that_has_a_chooser_for_the_model_chooses() -> None:
    parts = (ModelsPart(), ModelsPart(chooser=of_one_model), ModelsPart(chooser=of_all))
    found = chooser_of(parts, "m", Rollout(), {"1": FIRST})
    assert found is not None
    assert found.choose(()) is FIRST


def test_a_model_of_which_no_extension_chooses_has_no_chooser() -> None:
    assert chooser_of((ModelsPart(chooser=of_one_model),), "other", Rollout(), {}) is None
