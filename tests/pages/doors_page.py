"""The tables "what works" of the protocols' pages, from the doors of tests/doors: each cell is held by a test of that suite."""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.doors.check import feature_of, is_check
from tests.doors.door import FEATURES, Door
from tests.doors.doors import DOORS
from tests.doors.known import KNOWN
from tests.markdown import ROOT

FOLDER = ROOT / "docs" / "reference"
_BEGIN, _END = "<!-- what works: written by `make reference` from tests/doors -->", "<!-- end of what works -->"
_PART = re.compile(f"{_BEGIN}\n.*?{_END}", re.DOTALL)
YES, NO, NOT_YET = "yes", "no", "not yet"


def pages() -> Sequence[Path]:
    return [FOLDER / name for name in dict.fromkeys(door.page for door in DOORS.found if door.page)]


def rewritten(page: Path) -> str:
    """The page's text with its table brought up to date. Raises `SystemExit` for a page that has no place for it."""
    text = page.read_text("utf-8")
    if not _PART.search(text):
        raise SystemExit(f"{page.name} has no lines {_BEGIN!r} and {_END!r}")
    return _PART.sub(lambda _: f"{_BEGIN}\n\n{_table(list(DOORS.on(page.name)))}\n{_END}", text)


def _table(doors: Sequence[Door]) -> str:
    """What works everywhere, in a sentence; the rest as rows; and a line per reason."""
    cells = {feature: [_cell(door, feature) for door in doors] for feature in FEATURES}
    everywhere = [FEATURES[feature] for feature, found in cells.items() if set(found) == {YES}]
    rows = [["", *(door.title for door in doors)], ["---"] * (len(doors) + 1)]
    rows += [[FEATURES[feature], *found] for feature, found in cells.items() if set(found) != {YES}]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    reasons = "".join(_filled(f"- {text}") for text in _reasons(doors))
    return "\n".join([_filled(f"These work: {'; '.join(everywhere)}.", ""), lines, reasons])


def _cell(door: Door, feature: str) -> str:
    if feature in door.lacks:
        return NO
    return NOT_YET if feature in _known(door) else YES


def _reasons(doors: Sequence[Door]) -> Iterator[str]:
    """Why which doors lack what: one sentence per reason."""
    found: dict[str, dict[str, set[str]]] = {}
    for door in doors:
        for feature, reason in {**_known(door), **door.lacks}.items():
            found.setdefault(reason, {}).setdefault(door.title, set()).add(feature)
    for reason, lacking in found.items():
        features = set().union(*lacking.values())
        named = "; ".join(text for feature, text in FEATURES.items() if feature in features)
        yield f"{', '.join(lacking)} ({named}): {reason}."


def _known(door: Door) -> Mapping[str, str]:
    features = _features_of_tests()
    return {features[test]: reason for (name, test), reason in KNOWN.items() if name == door.name}


@cache
def _features_of_tests() -> Mapping[str, str]:
    names = sorted(path.stem for path in (ROOT / "tests" / "doors").glob("test_*.py"))
    modules = [importlib.import_module(f"tests.doors.{name}") for name in names]
    tests = {name: value for module in modules for name, value in vars(module).items() if is_check(value)}
    return {name: feature_of(test) for name, test in tests.items()}


def _filled(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) + "\n"
