from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.tune.measuring.drift import ModelOutput, drift


def answer(value: Any) -> ModelOutput:
    return ModelOutput("application/json", json.dumps(value).encode())


def test_equal_answers_have_no_drift() -> None:
    found = drift([answer({"scores": [0.5, 0.25]})], [answer({"scores": [0.5, 0.25]})], reference="r")
    assert (found.absolute, found.relative, found.differing, found.compared) == (0.0, 0.0, 0, 2)


def test_the_largest_difference_counts_over_the_largest_value_of_its_answer() -> None:
    found = drift([answer([10.0, 0.001])], [answer([10.0, 0.002])], reference="r")
    assert found.absolute == pytest.approx(0.001)
    assert found.relative == pytest.approx(0.0001)


def test_labels_and_whole_numbers_must_be_equal() -> None:
    found = drift([answer({"label": "cat", "class": 3})], [answer({"label": "dog", "class": 4})], reference="r")
    assert (found.differing, found.compared, found.absolute) == (2, 2, 0.0)


def test_answers_of_another_shape_differ() -> None:
    assert drift([answer([1.0])], [answer([1.0, 2.0])], reference="r").differing == 1


def test_bytes_are_compared_as_they_are() -> None:
    assert drift([ModelOutput("image/png", b"a")], [ModelOutput("image/png", b"b")], reference="r").differing == 1


def test_a_number_that_became_no_number_is_far_away() -> None:
    found = drift([ModelOutput("application/json", b"[NaN]")], [answer([1.0])], reference="r")
    assert found.relative > 1e300
