"""What counts as the same output, and what does not."""

from __future__ import annotations

import pytest

from tests.blocks.compare import json_difference, text_difference


@pytest.mark.parametrize(
    ("shown", "got"),
    [
        ("8\nqueued 1 ms | ran 0.1 ms", "8\r\nqueued 12.5 ms | ran 3 s\r\n"),
        ("NAME      STATUS", "NAME STATUS  "),
        ("01k9...-double  queued", "01m8592sas01e4e0557kbqg95z-double  queued"),
        ("ready\n...\ntry", "ready\none\ntwo\ntry"),
        ("ready\n...\ntry", "ready\ntry"),
        ("rate ... jobs/s", "rate 12.1 jobs/s"),
        ("in /home/you/demo/.penstock", "in /tmp/abc/home/demo/.penstock"),
        ("at 2026-11-23T20:15:00Z", "at 2027-01-01T00:00:00.123456Z"),
    ],
)
def test_times_ids_durations_folders_and_dots_agree_with_anything_of_their_kind(shown: str, got: str) -> None:
    assert text_difference(shown, got, "/tmp/abc/home/demo") == ""


@pytest.mark.parametrize(
    ("shown", "got"), [("8", "9"), ("8", "8\n9"), ("queued 1 ms", "queued"), ("a\n...\nb", "a\nc"), ("1 job", "2 jobs")]
)
def test_anything_else_is_a_difference_and_is_shown_as_a_diff(shown: str, got: str) -> None:
    difference = text_difference(shown, got)
    assert "--- shown" in difference
    assert f"+{got.splitlines()[-1]}" in difference


def test_lines_may_follow_what_is_shown_of_a_command_that_stays() -> None:
    assert text_difference("ready", "ready\nmore", goes_on=True) == ""
    assert text_difference("ready", "ready\nmore") != ""


@pytest.mark.parametrize(
    ("shown", "got"),
    [
        ({"y": 16}, {"y": 16, "z": 1}),
        ({"total_s": 5.104}, {"total_s": 0}),
        ({"id": "01k9...-square", "at": "..."}, {"id": "01m8592sas01e4e0557kbqg95z-square", "at": 3}),
        ([1, "..."], [1, 2, 3]),
        ({"...": "..."}, {}),
    ],
)
def test_json_agrees_if_it_has_what_is_shown(shown: object, got: object) -> None:
    assert json_difference(shown, got) == ""


@pytest.mark.parametrize(
    ("shown", "got", "place"),
    [
        ({"a": {"y": 16}}, {"a": {"y": 17}}, "$.a.y"),
        ({"y": 16}, {"x": 16}, "'y' is shown, got only x"),
        ([1], [1, 2], "1 entries are shown, got 2"),
        ([{"y": 1}], [{"y": True}], "$[0].y"),
        ({"at": 1.5}, {"at": None}, "$.at"),
    ],
)
def test_json_that_lacks_something_names_the_place(shown: object, got: object, place: str) -> None:
    assert place in json_difference(shown, got)
