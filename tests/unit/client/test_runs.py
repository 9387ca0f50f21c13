"""A run's input as a file, and its output lines as values."""

from __future__ import annotations

import json

import pytest

from penstock.client import runs


def test_output_lines_become_values_and_a_failed_row_becomes_its_error() -> None:
    rows = runs.OutputRows()
    failure = runs.row_failure('{"row": 1, "code": "invalid_input", "message": "negative"}')
    assert failure is not None
    assert rows.value('{"output": 4}', failure) == 4
    assert rows.value("{}", failure) is failure
    assert rows.value('{"output": null}', None) is None
    assert (failure.row, failure.code, failure.message) == (1, "invalid_input", "negative")


def test_the_end_of_the_errors_file_is_no_failure() -> None:
    assert runs.row_failure("") is None


def test_values_of_any_type_become_lines_of_a_file_that_is_gone_afterwards() -> None:
    with runs.as_file([1, "two", {"three": 3}]) as (path, count):
        lines = path.read_text().splitlines()
    assert count == 3
    assert [json.loads(line) for line in lines] == [{runs.ROW: 1}, {runs.ROW: "two"}, {runs.ROW: {"three": 3}}]
    assert not path.exists()


async def test_the_same_file_for_an_event_loop() -> None:
    async with runs.as_file_aio(range(2)) as (path, count):
        assert (path.read_text(), count) == ('{"input":0}\n{"input":1}\n', 2)
    assert not path.exists()


def test_a_run_that_is_not_completed_raises_with_its_reason() -> None:
    view = runs.RunView("r", "failed", error={"message": "no such column"})
    with pytest.raises(runs.RunEnded, match="run r is failed: no such column") as caught:
        runs.require_completed(view)
    assert caught.value.view is view
    assert runs.require_completed(runs.RunView("r", "completed")).id == "r"
