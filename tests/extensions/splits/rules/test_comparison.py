"""Whether a copy was answered as its original."""

from __future__ import annotations

import pytest

from penstock.extensions.splits.comparison import JobEnd, Match, close, compared
from penstock.job import JobState

JSON = "application/json"


def output(data: bytes, content_type: str = JSON) -> JobEnd:
    return JobEnd(JobState.SUCCEEDED, "", content_type, data)


FAILED = JobEnd(JobState.FAILED, "handler_error")


@pytest.mark.parametrize(
    ("original", "copy", "match"),
    [
        (output(b'{"y": 1}'), output(b'{"y": 1}'), Match.EQUAL),
        (output(b'{"y": 1.0}'), output(b'{"y":1.0000000001}'), Match.CLOSE),
        (output(b'{"y": 1, "z": 2}'), output(b'{"z": 2, "y": 1}'), Match.CLOSE),
        (output(b'{"y": 1.0}'), output(b'{"y": 1.1}'), Match.DIFFERENT),
        (output(b'{"y": 1}'), output(b"not json"), Match.DIFFERENT),
        (output(b"abc", "text/plain"), output(b"abd", "text/plain"), Match.DIFFERENT),
        (output(b"1"), output(b"1", "text/plain"), Match.DIFFERENT),
        (output(b"1"), FAILED, Match.STATUS),
        (FAILED, output(b"1"), Match.STATUS),
        (FAILED, FAILED, Match.EQUAL),
        (FAILED, JobEnd(JobState.FAILED, "handler_timeout"), Match.STATUS),
        (FAILED, JobEnd(JobState.DEAD, "handler_error"), Match.STATUS),
        (output(b"1"), JobEnd(JobState.SUCCEEDED), Match.LOST),
    ],
)
def test_two_ends_match_as_their_callers_would_see_them(original: JobEnd, copy: JobEnd, match: Match) -> None:
    assert compared(original, copy, tolerance=1e-6) is match


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (100.0, 100.9, True),
        (100.0, 102.0, False),
        (0.0, 0.005, True),
        (True, 1, False),
        ([1, [2.0]], [1, [2.001]], True),
        ([1, 2], [1], False),
        ({"a": 1}, {"b": 1}, False),
        ("1", 1, False),
        (None, None, True),
    ],
)
def test_numbers_alone_may_differ_and_only_a_little(one: object, other: object, same: bool) -> None:
    assert close(one, other, 0.01) is same


def test_a_value_nested_too_deep_to_compare_counts_as_different() -> None:
    deep = b"[" * 900 + b"]" * 900
    assert compared(output(deep), output(deep + b" "), tolerance=0.1) is Match.DIFFERENT
    assert compared(output(deep), output(deep), tolerance=0.1) is Match.EQUAL
