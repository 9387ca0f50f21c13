from __future__ import annotations

import pytest

from penstock.gateway.asgi.ranges import Conditions, ContentPart, RangeNotSatisfiable, wanted_part

TAG = '"job"'


def part(range: str | None, size: int = 10, **others: str) -> ContentPart:
    return wanted_part(size, TAG, Conditions(range, others.get("if_range"), others.get("if_none_match")))


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=3-", 3, 10),
        ("bytes=3-5", 3, 6),
        ("bytes=3-99", 3, 10),
        ("bytes=-4", 6, 10),
        ("bytes=-99", 0, 10),
    ],
)
def test_one_range_is_that_part(header: str, start: int, end: int) -> None:
    assert part(header) == ContentPart(206, start, end)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes=",
        "bytes=-",
        "bytes= - ",
        "bytes=5-3",
        "bytes=a-b",
        "bytes=0-1,4-5",
        "items=0-1",
        "bytes=0-1-2",
        "bytes=" + "9" * 40 + "-",
    ],
)
def test_what_is_not_one_range_of_bytes_is_answered_with_the_whole(header: str | None) -> None:
    assert part(header) == ContentPart(200, 0, 10)


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=99-100", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)]
)
def test_a_range_behind_the_end_is_refused_with_the_size(header: str, size: int) -> None:
    with pytest.raises(RangeNotSatisfiable) as caught:
        part(header, size)
    assert caught.value.size == size


def test_a_range_counts_only_for_the_content_that_its_reader_has() -> None:
    assert part("bytes=3-5", if_range=TAG) == ContentPart(206, 3, 6)
    for other in ('"another"', 'W/"job"', "Mon, 23 Nov 2026 06:00:00 GMT"):
        assert part("bytes=3-5", if_range=other) == ContentPart(200, 0, 10)


@pytest.mark.parametrize("header", [TAG, '"a", "job"', 'W/"job"', "*"])
def test_who_has_the_content_is_sent_nothing(header: str) -> None:
    assert part("bytes=3-5", if_none_match=header) == ContentPart(304, 0, 0)
    assert part(None, if_none_match='"another"').status == 200
