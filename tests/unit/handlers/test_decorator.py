from __future__ import annotations

from penstock.handlers.contract import Failure, Handler
from penstock.handlers.decorator import ModelAttributes, attributes_of, model


@model
def double(x: int) -> int:
    """Twice a number."""
    return 2 * x


@model(batch=True, name="sums", version="3", max_batch_size=4, max_wait_s=0.1, accepts=("application/json",))
def running_sums(numbers: list[int]) -> list[int]:
    return [sum(numbers[: place + 1]) for place in range(len(numbers))]


class Described(Handler):
    """Says what it does."""

    max_batch_size = 3


def test_a_marked_function_is_still_a_function() -> None:
    assert double(4) == 8
    assert double.__name__ == "double"


def test_a_function_of_one_item_serves_a_list() -> None:
    assert double.handler().inference([1, 2, 3]) == [2, 4, 6]


def test_an_item_that_raises_fails_alone_and_nothing_runs_twice() -> None:
    seen: list[int] = []

    @model
    def inverse(x: int) -> float:
        seen.append(x)
        return 1 / x

    outputs = inverse.handler().inference([1, 0, 2])
    assert outputs == [1.0, Failure("ZeroDivisionError: division by zero"), 0.5]
    assert seen == [1, 0, 2]


def test_a_batch_function_gets_the_whole_list() -> None:
    assert running_sums.handler().inference([1, 2, 3]) == [1, 3, 6]


def test_options_are_kept_as_declared_defaults() -> None:
    assert running_sums.attributes == ModelAttributes("sums", "3", 4, 0.1, ("application/json",))
    assert double.attributes == ModelAttributes(description="Twice a number.")


def test_a_sample_reaches_the_handler() -> None:
    assert model(sample=3)(lambda x: x).handler().sample == 3
    assert double.handler().sample is None


def test_a_class_declares_by_its_attributes_and_docstring() -> None:
    assert attributes_of(Described) == ModelAttributes(max_batch_size=3, description="Says what it does.")
