"""The connection that a request came by, for whoever keeps its client waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

LINE = "penstock.line"


class ClientConnection:
    """`lost` once the client has hung up; `when_lost` is called as that happens."""

    def __init__(self) -> None:
        self.lost = False
        self.when_lost: Callable[[], None] | None = None

    def hung_up(self) -> None:
        self.lost = True
        if self.when_lost is not None:
            self.when_lost()


def line_of(scope: Mapping[str, Any]) -> ClientConnection:
    """One that is never lost where no connection of ours is behind the request: tests call the application itself."""
    found: ClientConnection | None = scope.get(LINE)
    return found if found is not None else ClientConnection()
