"""What an extension brings to the dashboard: pages of its own, and sections of ours (docs/design/extensions.md)."""

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
    """A part of a page. `template` draws it, and finds there what it shows as `section.shown`."""

    template: str
    shown: Any


@dataclass(frozen=True, slots=True)
class DashboardPart:
    """`templates`: the package whose folder `templates` has the extension's, by the first part of their names: `x/page.html`.

    `pages`: whole pages, below `/ui/`. `menu`: the entries of those that are not reached from another page. `of_queues`,
    `of_model`, `of_job`: a section of the page of queues, of a model, of a job, or None where there is nothing to show.
    `run_words`: what pages call a run, by the kind in its record.
    """

    templates: Mapping[str, str] = field(default_factory=dict)
    pages: Callable[[Renderer], PageGroup] | None = None
    menu: Sequence[MenuEntry] = ()
    of_queues: Callable[[PageQuery], Awaitable[Section | None]] | None = None
    of_model: Callable[[ModelEntry, PageQuery], Awaitable[Section | None]] | None = None
    of_job: Callable[[Job], Awaitable[Section | None]] | None = None
    run_words: Mapping[str, str] = field(default_factory=dict)


async def sections(asked: Iterable[Awaitable[Section | None]]) -> list[Section]:
    """Those that have something to show, in the order of the extensions."""
    return [section for one in asked if (section := await one) is not None]
