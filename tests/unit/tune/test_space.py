from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import BadRequest
from penstock.model_spec import ModelSpec, RuntimeOptions
from penstock.tune.space import DIMENSIONS, TuneMachine, checked, choices, default_space, read_pairs

_TWO_CORES = TuneMachine(2)


def space(**named: Any) -> dict[str, tuple[Any, ...]]:
    return {**default_space(ModelSpec("m", "m.py"), _TWO_CORES), **named}


def test_pairs_are_read_and_a_dimension_may_come_twice() -> None:
    assert checked(read_pairs(["batch_size=1,2", "batch_size=2,4"])) == {"batch_size": (1, 2, 4)}


def test_former_names_are_understood_in_their_own_units() -> None:
    found = checked({"processors": ["cpu", "gpu"], "batch_delay": [0, 50], "max_batch_size": [8]})
    assert found == {"device": ("cpu", "cuda"), "max_wait_s": (0.0, 0.05), "batch_size": (8,)}


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("speed=1", "no dimension 'speed'"),
        ("batch_size=0", "not a value"),
        ("batch_size=x", "not a value"),
        ("precision=int3", "none of fp32"),
        ("batch_size", "names no values"),
        ("max_wait_s=-1", "not a value"),
    ],
)
def test_what_cannot_be_read_is_refused_with_words(pair: str, told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        checked(read_pairs([pair]))


def test_the_default_covers_every_dimension_and_both_splits_of_two_cores() -> None:
    found = default_space(ModelSpec("m", "m.py"), _TWO_CORES)
    assert set(found) == set(DIMENSIONS)
    splits = {(choice.slots, choice.engine.threads) for choice in choices(found, _TWO_CORES)}
    assert splits == {(1, 1), (1, 2), (2, 1)}


def test_only_files_of_a_runtime_that_knows_them_are_tried_in_other_precisions() -> None:
    assert space()["precision"] == ("fp32",)
    torch = default_space(ModelSpec("m", "m.pt2", runtime=RuntimeOptions()), _TWO_CORES)
    assert torch["precision"] == ("fp32", "bf16")


def test_a_lone_worker_has_one_wait_because_it_never_waits() -> None:
    found = choices(space(batch_size=(8,), slots=(1,), threads=(1,), max_wait_s=(0.0, 0.01)), _TWO_CORES)
    assert [choice.max_wait_s for choice in found] == [0.0]


def test_more_threads_than_cores_are_left_out() -> None:
    assert choices(space(slots=(2,), threads=(2,)), _TWO_CORES) == []


def test_no_two_choices_are_the_same() -> None:
    found = choices(space(), _TWO_CORES)
    assert len(found) == len(set(found)) > 10
