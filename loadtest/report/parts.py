"""The parts of a report, and their rendering as one HTML file. The templates hold all HTML and escape all text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from penstock.loadtest.report.axes import Chart

_PACKAGE = "penstock.loadtest.report"


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its title and a sentence on what it shows. A report leaves out a figure without a chart."""

    title: str
    text: str
    chart: Chart | None


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of texts. A report leaves out a table without rows.

    `look` is a class of the stylesheet: numbers, words (the last column is text), reasons, or cards (one per row on a phone).
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    look: str = "numbers"


@dataclass(frozen=True, slots=True)
class ReportPage:
    """The content of a page. `tiles`: large figures with their names; those without text are left out."""

    title: str
    heading: str
    subtitle: str
    machine: str
    tiles: Mapping[str, str]
    figures: Sequence[Figure]
    tables: Sequence[TextTable]
    answers: Sequence[str] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()


def render_page(page: ReportPage, template: str, *, package: str = _PACKAGE) -> str:
    """`package`: its folder `templates` holds `template`."""
    return _environment(package).get_template(template).render(page=page)


@cache
def _environment(package: str) -> Environment:
    loader = ChoiceLoader([PackageLoader(package), PackageLoader(_PACKAGE)])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def machine_line(machine: Mapping[str, object]) -> str:
    words = (machine.get("date"), f"{machine.get('cores')} cores", machine.get("processor"), machine.get("system"))
    return ", ".join(str(word) for word in words if word)
