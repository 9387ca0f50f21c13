from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.errors import BadRequest
from penstock.extension import submit_parameters
from penstock.gateway.jobs.schemas import JOB_PARAMETERS
from penstock.gateway.jobs.submitting.submit_options import (
    NAMES,
    NO_OPTIONS,
    SubmitOptions,
    checked_delay,
    parse_submit_options,
)
from penstock.job import MAX_DELAY_S, Priority

CHRISTMAS = datetime(2026, 12, 24, 18, tzinfo=UTC).timestamp()


def test_a_submit_without_options_is_interactive_with_the_models_deadline_and_starts_at_once() -> None:
    assert parse_submit_options(b"") == NO_OPTIONS == SubmitOptions(Priority.INTERACTIVE, None, 0.0, None)


def test_options_of_a_submit_come_from_the_query() -> None:
    assert parse_submit_options(b"priority=bulk&deadline_s=2.5") == SubmitOptions(Priority.BULK, 2.5)
    assert parse_submit_options(b"delay_s=1.5") == SubmitOptions(delay_s=1.5)


def test_no_delay_is_a_delay_of_zero() -> None:
    assert parse_submit_options(b"delay_s=0") == NO_OPTIONS


@pytest.mark.parametrize(
    "text",
    [
        b"2026-12-24T18:00:00Z",
        b"2026-12-24T19:00:00%2B01:00",
        b"2026-12-24T19:00:00+01:00",  # a plus sign that nobody escaped is read as a space
        b"2026-12-24T18:00:00.000Z",
        b"%d" % CHRISTMAS,
        b"%d.0" % CHRISTMAS,
    ],
)
def test_a_start_is_a_moment_of_rfc_3339_or_unix_seconds(text: bytes) -> None:
    assert parse_submit_options(b"not_before=" + text) == SubmitOptions(not_before=CHRISTMAS)


@pytest.mark.parametrize(
    "query",
    [
        b"deadline_s=0",
        b"deadline_s=-1",
        b"deadline_s=nan",
        b"deadline_s=x",
        b"priority=high",
        b"dedline_s=1",
        b"\xff=1",
        b"delay_s=-1",
        b"delay_s=soon",
        b"delay_s=inf",
        b"delay_s=%d" % (MAX_DELAY_S + 1),
        b"not_before=tomorrow",
        b"not_before=2026-12-24T18:00:00",
        b"not_before=",
        b"not_before=-1",
        b"not_before=1e400",
        b"delay_s=1&not_before=2026-12-24T18:00:00Z",
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(query: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_submit_options(query)


def test_a_start_too_far_ahead_is_refused() -> None:
    assert checked_delay(MAX_DELAY_S, name="not_before") == MAX_DELAY_S
    with pytest.raises(BadRequest, match="not_before lies"):
        checked_delay(MAX_DELAY_S + 1.0, name="not_before")


def test_tags_are_short_words_joined_by_commas() -> None:
    assert parse_submit_options(b"tags=nightly,team:a=b,nightly").tags == ("nightly", "team:a=b")
    eight = ",".join(f"t{number}" for number in range(8))
    assert len(parse_submit_options(f"tags={eight}".encode()).tags) == 8


@pytest.mark.parametrize("tags", ["", ",", "a,", "a+b", "x" * 65, "a%2Cb,,", ",".join(f"t{number}" for number in range(9))])
def test_tags_that_cannot_be_meant_are_refused(tags: str) -> None:
    with pytest.raises(BadRequest, match="tag"):
        parse_submit_options(f"tags={tags}".encode())


def test_the_document_describes_each_parameter_of_a_submit() -> None:
    assert {parameter["name"] for parameter in JOB_PARAMETERS} == {*NAMES, *submit_parameters()}


def test_parameters_of_a_route_and_of_a_model_are_no_options() -> None:
    found = parse_submit_options(b"partial=true&temperature=7&tags=a,b", of_model=("temperature",), of_route=("partial",))
    assert found == SubmitOptions(tags=("a", "b"), query={"temperature": "7"})
