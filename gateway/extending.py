"""What an extension adds to a gateway, and where each part is called (docs/design/extensions.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from fastapi import APIRouter

from penstock.access import Key
from penstock.broker.store.aio import AsyncStore
from penstock.extension import installed, load_part
from penstock.gateway.asgi.negotiation import Head
from penstock.gateway.asgi.problems import ProblemResponse
from penstock.gateway.asgi.server import ListeningSocket, ServerBeside
from penstock.gateway.asgi.wire import Receive, Scope, Send
from penstock.gateway.auth.rules import RouteRules
from penstock.gateway.dashboard.parts import DashboardPart
from penstock.gateway.runs.request import RunMembers
from penstock.job import Job
from penstock.model_spec import WorkerInfo
from penstock.settings.tables import Settings

if TYPE_CHECKING:
    from penstock.gateway.rpc.server import RpcShared
    from penstock.gateway.services import Services

log = structlog.get_logger(__name__)


class ForeignTarget(Protocol):
    """`route`: the path's template, as metrics show it. `is_public`: no key is needed, and nothing runs."""

    @property
    def route(self) -> str: ...
    @property
    def is_public(self) -> bool: ...


class ForeignDoor(Protocol):
    """Answers requests that become jobs without FastAPI; returns the status that was sent."""

    def target(self, scope: Scope) -> Any: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send, head: Head, target: Any) -> int: ...


class Lifespan(Protocol):
    def start(self) -> None: ...
    async def close(self) -> None: ...


class PathListener(Protocol):
    """Paths that another ASGI application answers, with checks of its own."""

    def serves(self, path: str) -> bool: ...

    @property
    def app(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Wording:
    """Words the refusals of these paths."""

    speaks: Callable[[str], bool]
    worded: Callable[[ProblemResponse, Exception], ProblemResponse]


@dataclass(frozen=True, slots=True)
class RpcPart:
    """`ports_in`: the settings that name a gRPC port, with the ports; raises `ConfigError` where one may not be served."""

    ports_in: Callable[[Settings], Mapping[str, int]]
    ports: Callable[[RpcShared], Sequence[ServerBeside]]


@dataclass(frozen=True, slots=True)
class GatewayPart:
    """`doors` answer paths that no other part serves, `doors_before` may take ours. `rules`: who may call the routes.
    `check_key` raises `ConfigError` for a key made at run time with wrong settings of the extension.
    `document` adds routes to the OpenAPI document, `scrape` text to the metrics. `run`: members of the body that starts a run.
    `listeners` answer before keys are looked at; `asides` are ports of their own. `beside` runs for as long as the process
    serves, with stores of its own. `timeline`: additions to a job's timeline.
    """

    routers: Sequence[APIRouter] = ()
    doors: Sequence[ForeignDoor] = ()
    doors_before: Sequence[ForeignDoor] = ()
    wordings: Sequence[Wording] = ()
    lifespans: Sequence[Lifespan] = ()
    listeners: Sequence[PathListener] = ()
    rules: RouteRules = field(default_factory=RouteRules)
    check_key: Callable[[Key], None] | None = None
    document: Callable[[dict[str, Any], bool], dict[str, Any]] | None = None
    scrape: Callable[[], Awaitable[bytes]] | None = None
    run: RunMembers | None = None
    rpc: RpcPart | None = None
    asides: Callable[[Settings, bool], Sequence[ListeningSocket]] | None = None
    beside: Callable[[Callable[[], AsyncStore]], AbstractContextManager[None]] | None = None
    timeline: Callable[[Job], Awaitable[Mapping[str, Any]]] | None = None
    dashboard: DashboardPart | None = None


def words_of(parts: Sequence[GatewayPart]) -> list[Wording]:
    return [wording for part in parts for wording in part.wordings]


def parts_of(services: Services) -> tuple[GatewayPart, ...]:
    """The parts of the installed extensions. An extension that is off returns None and has imported nothing."""
    parts = [load_part(one.gateway)(services) for one in installed() if one.gateway]
    return tuple(part for part in parts if part is not None)


class DifferingWorkers:
    """Workers with other extensions than this gateway: half of such an extension's work in the store is missing (D136).

    `ours`: the extensions with functions that are installed here.
    """

    def __init__(self, ours: Iterable[str]) -> None:
        self._ours = frozenset(ours)
        self._logged: set[str] = set()

    def look(self, workers: Sequence[WorkerInfo]) -> None:
        """Log once per worker which extensions are missing there or here. Earlier releases do not announce theirs."""
        differing = {one.name: set(one.extensions) for one in workers if one.extensions is not None}
        differing = {name: theirs for name, theirs in differing.items() if theirs != self._ours}
        for name in sorted(differing.keys() - self._logged):
            there, here = sorted(self._ours - differing[name]), sorted(differing[name] - self._ours)
            log.warning("extensions_differ", worker=name, missing_there=there, missing_here=here)
        self._logged = set(differing)
