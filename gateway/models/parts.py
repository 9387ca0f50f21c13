"""What extensions add to a gateway's models: choosers of versions, and checks of loads (docs/design/extensions.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.model_spec import ModelSpec
from penstock.rollout import Rollout

if TYPE_CHECKING:
    from penstock.gateway.models.registry import ModelRegistry, VersionEntry

# A request's headers, with names in lower case.
Headers = Iterable[tuple[bytes, bytes]]


class VersionChooser(Protocol):
    """Chooses the version of requests that name none, for one model, until the next refresh of the registry."""

    def choose(self, headers: Headers) -> VersionEntry:
        """A version whose `chosen` is not empty."""
        ...


@dataclass(frozen=True, slots=True)
class ModelsPart:
    """`chooser` returns None for a model whose versions it does not choose. `on_refresh` runs after each refresh in the
    background; it may raise only `StoreUnavailable`. `check_load` and `check_unload` raise to refuse.
    """

    chooser: Callable[[str, Rollout, Mapping[str, VersionEntry]], VersionChooser | None] | None = None
    on_refresh: Callable[[ModelRegistry], Awaitable[None]] | None = None
    check_load: Callable[[ModelRegistry, ModelSpec], None] | None = None
    check_unload: Callable[[Rollout, str, str], None] | None = None


def chooser_of(
    parts: Iterable[ModelsPart], model: str, rollout: Rollout, versions: Mapping[str, VersionEntry]
) -> VersionChooser | None:
    """The first chooser of an extension. None: requests that name no version get the default one."""
    choosers = (part.chooser(model, rollout, versions) for part in parts if part.chooser is not None)
    return next((chooser for chooser in choosers if chooser is not None), None)
