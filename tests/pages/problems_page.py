"""The last part of docs/production/troubleshooting.md: a section for each problem, from the texts that the gateway serves."""

from __future__ import annotations

import textwrap

from penstock.gateway.asgi.problems import titles
from penstock.gateway.telemetry.problem_pages import facts_of
from tests.markdown import ROOT

PAGE = ROOT / "docs" / "production" / "troubleshooting.md"
MARK = "<!-- problems: written by `make reference` from gateway/telemetry/problem_pages.py -->\n"


def rewritten(page: str) -> str:
    """Return the page with its last part brought up to date, in the order of the problems' titles."""
    own, mark, _ = page.partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE.name} has no line {MARK!r}")
    codes = sorted(titles(), key=lambda code: titles()[code].lower())
    return own + mark + "".join(f"\n{_section(code)}" for code in codes)


def _section(code: str) -> str:
    facts = facts_of(code)
    text = f"Status {facts['status']}. {facts['cause']}"
    return f"### {facts['title']} (`{code}`)\n\n{_filled(text)}\n\n{_filled('What to do: ' + facts['action'])}\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
