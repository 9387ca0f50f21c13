from __future__ import annotations

import pytest

from penstock.workers.ipc.said import SaidLine, mark_of, marked, read_line


@pytest.mark.parametrize(
    ("text", "begins_line", "expected"),
    [
        ("a", True, "<a"),
        ("a", False, "a"),
        ("a\n", True, "<a\n"),
        ("a\nb\n", True, "<a\n<b\n"),
        ("a\nb", False, "a\n<b"),
        ("\n", False, "\n"),
        ("\n\n", True, "<\n<\n"),
        ("", True, ""),
    ],
)
def test_each_line_that_begins_in_a_text_is_marked(text: str, begins_line: bool, expected: str) -> None:
    assert marked(text, "<", begins_line=begins_line) == expected


def test_a_marked_line_names_its_batch_and_item() -> None:
    assert read_line(f"{mark_of(7, 2)}größe".encode()) == SaidLine("größe", 7, 2)
    assert read_line(f"{mark_of(7)}x".encode()) == SaidLine("x", 7, 0)


def test_a_line_without_a_mark_belongs_to_no_batch() -> None:
    assert read_line(b"loading") == SaidLine("loading")
    assert read_line(b"\xff") == SaidLine("\ufffd")


def test_marks_within_a_line_are_not_shown() -> None:
    """Two threads that print at once share a line."""
    assert read_line(f"{mark_of(1)}a{mark_of(2)}b".encode()) == SaidLine("ab", 1, 0)
    assert read_line(f"a{mark_of(2)}b".encode()) == SaidLine("ab")
