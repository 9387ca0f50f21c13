from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import HandlerContractError, InvalidInput
from penstock.handlers.contract import Failure, failure_of, tracebacks


def test_a_failure_carries_class_and_message_of_the_error() -> None:
    failure = failure_of(ValueError("no such row"))
    assert (failure.message, failure.code, failure.retryable) == ("ValueError: no such row", "handler_error", False)
    assert failure.kinds == ("ValueError", "Exception")


def test_an_error_without_text_is_named_by_its_class() -> None:
    assert failure_of(KeyboardError()).message == "KeyboardError"


def test_errors_of_penstock_keep_their_own_code_and_words() -> None:
    failure = failure_of(InvalidInput("too short"))
    assert (failure.message, failure.code) == ("too short", "invalid_input")
    assert failure_of(HandlerContractError("2 for 3")).code == "handler_contract"


def test_a_dumped_tensor_does_not_become_the_message() -> None:
    assert len(failure_of(ValueError("x" * 100_000)).message) == 1_000


def test_a_message_that_cannot_be_written_does_not_take_the_child_down() -> None:
    # Regression: a lone surrogate in the message ended the process as it sent the outcome, so the job failed as poison.
    failure = failure_of(ValueError("\ud800 in row 7"))
    assert failure.message == "ValueError: ? in row 7"
    assert Failure(ValueError("as it is")).message == "as it is"  # type: ignore[arg-type]


def test_an_error_that_cannot_tell_its_message_is_told_all_the_same() -> None:
    assert failure_of(Unspeakable()).message == "Unspeakable: (its message cannot be read: ZeroDivisionError)"


@pytest.mark.parametrize("code", ["", "Bad Image", "../x", "\n", "x" * 65, None, 7])
def test_a_code_that_clients_could_not_match_on_is_refused(code: Any) -> None:
    with pytest.raises(HandlerContractError, match="snake_case"):
        Failure("no image", code)


class KeyboardError(Exception):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        return str(1 / 0)


@pytest.fixture
def kept() -> Iterator[None]:
    """Keep tracebacks, as a child does whose model's settings say so."""
    tracebacks.are_kept = True
    yield
    tracebacks.are_kept = False


def raised(text: str = "no such row") -> Exception:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_a_failure_has_no_traceback_unless_they_are_kept() -> None:
    assert failure_of(raised()).traceback == ""


@pytest.mark.usefixtures("kept")
def test_a_kept_traceback_names_the_place_and_the_error() -> None:
    text = failure_of(raised()).traceback
    assert text.startswith("Traceback (most recent call last):\n")
    assert "raise ValueError(text)" in text
    assert text.endswith("ValueError: no such row\n")
    assert failure_of(raised()).message == "ValueError: no such row"


@pytest.mark.usefixtures("kept")
def test_a_long_traceback_loses_whole_lines_of_its_beginning() -> None:
    """Half of a secret would not be masked."""
    text = failure_of(raised("\n".join(f"line {number} of a long message" for number in range(2_000)))).traceback
    assert len(text) <= 16_004
    first, second, *_ = text.splitlines()
    assert first == "..."
    assert second.startswith("line ")
    assert text.endswith("line 1999 of a long message\n")


@pytest.mark.usefixtures("kept")
def test_a_traceback_is_text_that_utf_8_can_hold() -> None:
    assert failure_of(raised("\ud800")).traceback.encode()
