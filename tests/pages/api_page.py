"""docs/reference/python-api.md: a heading and the first sentence for each public name, and for each error that callers get.

A code host shows these. On the site, docs/site/hooks.py puts the signature, docstring and members in the sentence's place.
"""

from __future__ import annotations

import inspect
import re
import textwrap

import penstock
from penstock import errors
from tests.markdown import ROOT

PAGE = ROOT / "docs" / "reference" / "python-api.md"
# The first word says where the names are: `names` in penstock, `errors` in penstock.errors.
MARK = re.compile(r"<!-- (?P<kind>names|errors): (?P<names>[\w\s,]+) -->\n(?P<text>(?:(?!## |<!-- (?:names|errors):).*\n)*)")
_MODULES = {"names": penstock, "errors": errors}


def public_names() -> set[str]:
    return set(penstock.__all__) - {"__version__"}


def rewritten(page: str) -> str:
    """Return the page with what follows each list of names brought up to date."""
    return MARK.sub(
        lambda found: f"<!-- {found['kind']}: {found['names']} -->\n\n{_sections(found['kind'], named(found['names']))}", page
    )


def named(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def listed(page: str, kind: str) -> list[str]:
    return [name for found in MARK.finditer(page) if found["kind"] == kind for name in named(found["names"])]


def _sections(kind: str, names: list[str]) -> str:
    module = _MODULES[kind].__name__
    summaries = {name: _summary(getattr(_MODULES[kind], name)) for name in names}
    return "".join(f"### `{name}`\n\n{text}\n\n<!-- api: {module}.{name} -->\n\n" for name, text in summaries.items())


def _summary(found: object) -> str:
    text = inspect.cleandoc(found.__doc__ or "")
    first = re.split(r"(?<=[.:])\s", text.replace("\n", " "), maxsplit=1)[0]
    return textwrap.fill(first, 120, break_long_words=False, break_on_hyphens=False)
