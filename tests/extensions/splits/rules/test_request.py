"""A split as an operator writes it: read, or refused with the place and the reason of each fault."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.extensions.splits.request import check_versions, read_split
from penstock.extensions.splits.split import Shadow, Split
from penstock.model_spec import ModelInfo, VersionInfo

INFO = ModelInfo("m", versions={"1": VersionInfo(), "2": VersionInfo(), "3": VersionInfo(), "s": VersionInfo(streams=True)})


def read(body: dict[str, Any]) -> Split:
    return read_split(body, "id", INFO, now=7.0)


def test_weights_sticky_header_and_shadow_are_read() -> None:
    body = {"weights": {"1": 90, "2": 10}, "sticky": "X-User", "shadow": {"version": "3", "share": 5}}
    assert read(body) == Split("id", {"1": 90.0, "2": 10.0}, "x-user", Shadow("3", 5.0), made_at=7.0)


def test_without_weights_the_default_version_is_the_baseline() -> None:
    split = read({"canary": {"version": "2", "steps": [1, 100]}})
    assert split.shares() == {"1": 99.0, "2": 1.0}
    assert split.canary is not None
    assert (split.canary.since, split.canary.min_samples) == (7.0, 200)


def test_thirds_may_be_written_with_two_decimals() -> None:
    assert len(read({"weights": {"1": 33.33, "2": 33.33, "3": 33.33}}).weights) == 3


@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        ({"weights": {"1": 90, "2": 20}}, "/weights", "must add up to 100 percent, and these add up to 110"),
        ({"weights": {"1": 150, "2": -50}}, "/weights/1", "must be percent, from 0 to 100, not 150"),
        ({"weights": {str(number): 1 for number in range(100)}}, "/weights", "at most 16"),
        ({"weights": {"1": "all"}}, "/weights", "expected 'float', got 'str'"),
        ({"wieghts": {"1": 100}}, "", "unknown field 'wieghts'"),
        ({"sticky": "x user"}, "/sticky", "must be the name of a request header"),
        ({"weights": {"1": 50, "2": 50}, "canary": {"version": "2"}}, "/canary/version", "leave '2' out of the weights"),
        ({"canary": {"version": "1"}}, "/canary/version", "is the default version of 'm'"),
        ({"canary": {"version": "2", "steps": [5, 1]}}, "/canary/steps", "each above the one before"),
        ({"canary": {"version": "2", "steps": []}}, "/canary/steps", "1 to 50 percentages"),
        ({"canary": {"version": "2", "steps": [0, 5]}}, "/canary/steps", "above 0"),
        ({"canary": {"version": "2", "steps": [100]}}, "/canary/steps", "no other version to compare with"),
        ({"canary": {"version": "2", "max_p99": 0.5}}, "/canary/max_p99", "must be from 1 to 1000, not 0.5"),
        ({"canary": {"version": "2", "min_samples": 0}}, "/canary/min_samples", "must be from 1"),
        ({"canary": {"version": "2", "step_s": 0}}, "/canary/step_s", "must be from 1 to"),
        ({"canary": {"version": "2", "max_errors": 2}}, "/canary/max_errors", "must be from 0 to 1, not 2"),
        ({"shadow": {"version": "1", "share": 5}}, "/shadow/version", "answers requests itself"),
        ({"shadow": {"version": "2", "share": 5}, "canary": {"version": "2"}}, "/shadow/version", "answers requests itself"),
        ({"shadow": {"version": "2", "share": 0}}, "/shadow/share", "above 0 and up to 100"),
        ({"shadow": {"version": "2", "share": 5, "tolerance": -1}}, "/shadow/tolerance", "from 0 to 1"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(body: dict[str, Any], pointer: str, detail: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(body)
    assert detail in {fault["pointer"]: fault["detail"] for fault in refused.value.errors}[pointer]
    assert "this split cannot be used" in refused.value.message


def test_all_faults_are_said_at_once() -> None:
    with pytest.raises(InvalidInput, match=r"\(and 1 more\)") as refused:
        read({"weights": {"1": 1}, "sticky": "?? "})
    assert len(refused.value.errors) == 2


def test_an_unknown_version_is_not_found_and_one_without_a_worker_conflicts() -> None:
    with pytest.raises(NotFound, match="no version '9'"):
        check_versions(read({"weights": {"1": 50, "9": 50}}), INFO, lambda version: 1)
    with pytest.raises(Conflict, match="version '3' of 'm' is not ready"):
        check_versions(read({"shadow": {"version": "3", "share": 5}}), INFO, lambda version: int(version != "3"))
    check_versions(read({"weights": {"1": 50, "2": 50}}), INFO, lambda version: int(version != "3"))


def test_versions_that_stream_and_others_share_no_split() -> None:
    with pytest.raises(Conflict, match="of the versions 1, s only s stream"):
        check_versions(read({"weights": {"1": 50, "s": 50}}), INFO, lambda version: 1)
