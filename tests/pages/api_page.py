"""docs/reference/python-api.md: a heading and the first sentence for each public name.

A code host shows these. On the site, docs/site/hooks.py puts the signature, docstring and members in the sentence's place.
"""

from __future__ import annotations

import inspect
import re
import textwrap

import penstock
from tests.markdown import ROOT

PAGE = ROOT / "docs" / "reference" / "python-api.md"
MARK = re.compile(r"<!-- names: (?P<names>[\w\s,]+) -->\n(?P<text>(?:(?!## |<!-- names).*\n)*)")


def public_names() -> set[str]:
    return set(penstock.__all__) - {"__version__"}


def rewritten(page: str) -> str:
    """Return the page with what follows each list of names brought up to date."""
    return MARK.sub(lambda found: f"<!-- names: {found['names']} -->\n\n{_sections(named(found['names']))}", page)


def named(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def listed(page: str) -> list[str]:
    return [name for found in MARK.finditer(page) for name in named(found["names"])]


def _sections(names: list[str]) -> str:
    return "".join(f"### `{name}`\n\n{_summary(name)}\n\n<!-- api: penstock.{name} -->\n\n" for name in names)


def _summary(name: str) -> str:
    found = getattr(penstock, name)
    text = inspect.cleandoc(found.__doc__ or "")
    first = re.split(r"(?<=[.:])\s", text.replace("\n", " "), maxsplit=1)[0]
    return textwrap.fill(first, 120, break_long_words=False, break_on_hyphens=False)
