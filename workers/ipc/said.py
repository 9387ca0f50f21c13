"""Marks before the lines that model code prints, for which batch and item: a child writes them, its supervisor reads them.

Output that bypasses `sys.stdout` and `sys.stderr`, such as that of C libraries, has no marks.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Control characters that are not in text (record and unit separator). Code that prints them can only misname its own batches
# in its worker's log.
_MARK = re.compile(rb"\x1e(\d{1,15})\.(\d{1,9})\x1f")


class SaidLine(NamedTuple):
    """One line that a child printed.

    `batch`: the number, in this child, of the batch that it was printed for; 0: for none. `place`: that of the item in its
    batch, from 1; 0: for several items.
    """

    text: str
    batch: int = 0
    place: int = 0


def mark_of(batch: int, place: int = 0) -> str:
    """`place` counts from 1."""
    return f"\x1e{batch}.{place}\x1f"


def marked(text: str, mark: str, *, begins_line: bool) -> str:
    """The text with the mark before each line that begins in it."""
    return (mark if begins_line and text else "") + text[:-1].replace("\n", "\n" + mark) + text[-1:]


def read_line(line: bytes) -> SaidLine:
    """The line without its marks: a line that several threads wrote to may have more than one, and belongs to the first."""
    match = _MARK.match(line)
    text = _MARK.sub(b"", line).decode("utf-8", "replace")
    return SaidLine(text, int(match[1]), int(match[2])) if match else SaidLine(text)
