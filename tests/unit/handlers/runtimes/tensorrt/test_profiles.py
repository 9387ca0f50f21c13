from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.tensorrt.profiles import Span, batch_spans, outline, profiles


def test_without_buckets_one_profile_runs_from_one_item_to_the_largest_batch() -> None:
    assert batch_spans((), 32) == [(1, 32, 32)]


def test_each_bucket_has_a_profile_of_its_own() -> None:
    assert batch_spans((8, 1, 8), 16) == [(1, 1, 1), (8, 8, 8)]


def test_fixed_dimensions_are_taken_from_the_model_and_free_ones_from_the_settings() -> None:
    inputs = {"ids": (None, None), "image": (None, 3, 8), "fixed": (1, 2)}
    shapes = {"ids": [[1], [64], [512]]}
    (found,) = profiles(inputs, [(1, 4, 8)], shapes)
    assert found == {
        "ids": Span((1, 1), (4, 64), (8, 512)),
        "image": Span((1, 3, 8), (4, 3, 8), (8, 3, 8)),
        "fixed": Span((1, 2), (1, 2), (1, 2)),
    }
    assert outline(found, 2) == "ids:8x512,image:8x3x8,fixed:1x2"


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({}, r"input ids has free dimensions besides the batch, \[any, 2\].*set session\.shapes\.ids"),
        ({"ids": [[1, 2]]}, "must be three shapes"),
        ({"ids": [[1, 2], [1, 2], [1, 3]]}, "must be three shapes"),
        ({"ids": [1, 2, 3]}, "must be three shapes"),
        ({"idz": [[1, 2]] * 3}, "names idz, but the model's inputs are ids"),
    ],
)
def test_a_range_that_is_missing_or_does_not_fit_is_told(shapes: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        profiles({"ids": (None, None, 2)}, [(1, 4, 8)], shapes)
