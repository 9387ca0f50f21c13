"""What an extension adds to the dashboard: pages, and sections of our pages (docs/design/extensions.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import APIRouter

from penstock.gateway.dashboard.render import MenuEntry, Renderer
from penstock.gateway.models.registry import ModelEntry
from penstock.job import Job

# The query of a page's address.
PageQuery = Mapping[str, str]


class PageGroup(Protocol):
    def add_routes(self, router: APIRouter) -> None: ...


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page. `template` draws it from `section.shown`."""

    template: str
    shown: Any


@dataclass(frozen=True, slots=True)
class DashboardPart:
    """`templates`: the package with the extension's folder `templates`, by the first part of their names: `x/page.html`.

    `pages`: whole pages, below `/ui/`. `menu`: entries for pages without links from other pages. `of_queues`,
    `of_model`, `of_job`: a section of the page of queues, of a model, of a job, or None if there is nothing to show.
    `run_words`: the name of a run on the pages, by the kind in its record.
    """

    templates: Mapping[str, str] = field(default_factory=dict)
    pages: Callable[[Renderer], PageGroup] | None = None
    menu: Sequence[MenuEntry] = ()
    of_queues: Callable[[PageQuery], Awaitable[Section | None]] | None = None
    of_model: Callable[[ModelEntry, PageQuery], Awaitable[Section | None]] | None = None
    of_job: Callable[[Job], Awaitable[Section | None]] | None = None
    run_words: Mapping[str, str] = field(default_factory=dict)


async def sections(asked: Iterable[Awaitable[Section | None]]) -> list[Section]:
    """The sections that are not None, in the order of the extensions."""
    return [section for one in asked if (section := await one) is not None]
