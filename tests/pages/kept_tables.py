"""Tables of a page whose last column and order are written by hand, and whose other columns come from the code.

A table begins with `<!-- WORD: NAME -->`; a row is known by its first cell. A key may stand in any table of its name, in any
order. What a new key means has to be written into the page; a key that is gone leaves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

UNKNOWN = "**to be written**"
_KEY = re.compile(r"^\| `(\w+)`")
# The cells of a row before its last one, by the name of its table and its key.
Cells = Mapping[tuple[str, str], tuple[str, ...]]


def rewritten(page: str, *, word: str, head: tuple[str, ...], cells: Cells) -> str:
    """Return the page with its tables brought up to date. Raises `ValueError` for a row that no table of the page is for."""
    tables = re.compile(rf"<!-- {word}: (?P<name>[\w.]+) -->\n\n(?P<rows>(?:\|.*\n)*)")
    written = {(table["name"], key) for table in tables.finditer(page) for key, _ in _meanings(table["rows"])}
    missing = [place for place in cells if place not in written]

    def table(found: re.Match[str]) -> str:
        name = found["name"]
        lines = [row(cells[name, key], meaning) for key, meaning in _meanings(found["rows"]) if (name, key) in cells]
        # A new key goes into the first table of its name, once.
        lines += [row(cells[place], UNKNOWN) for place in missing if place[0] == name]
        missing[:] = [place for place in missing if place[0] != name]
        return f"<!-- {word}: {name} -->\n\n| {' | '.join(head)} |\n{'|---' * len(head)}|\n{''.join(lines)}"

    page = tables.sub(table, page)
    if missing:
        raise ValueError(f"the page has no line <!-- {word}: {missing[0][0]} -->")
    return page


def row(cells: tuple[str, ...], meaning: str) -> str:
    return f"| {' | '.join((*cells, meaning))} |\n"


def _meanings(rows: str) -> Iterator[tuple[str, str]]:
    """The keys of a table and what the page says of each."""
    for text in rows.splitlines():
        if found := _KEY.match(text):
            yield found[1], text.removesuffix(" |").rpartition(" | ")[2]
