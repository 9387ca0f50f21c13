"""Makes, shows and ends the splits of models."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from penstock.broker.store.aio import AsyncStore
from penstock.errors import NotFound
from penstock.extensions.splits.canary import Canary
from penstock.extensions.splits.comparison import Match
from penstock.extensions.splits.figures import VersionFigures, figures_of
from penstock.extensions.splits.gateway.canaries import verdict_now
from penstock.extensions.splits.gateway.entry import split_in
from penstock.extensions.splits.request import check_versions, read_split
from penstock.extensions.splits.split import Decision, Shadow, Split, kept_split
from penstock.extensions.splits.store import counts_of
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.models.changes import change_rollout
from penstock.gateway.models.registry import ModelEntry, ModelRegistry
from penstock.model_spec import ModelInfo

# Eight characters: this is one of the watchers of a record, which should stay short.
_ID_BYTES = 4
_COPIES = ("dropped", "refused", *(match.value for match in Match))


class SplitService:
    """What the routes and the dashboard ask for."""

    def __init__(self, store: AsyncStore, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry

    async def divide(self, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The view of the new split. Raises `InvalidInput`, `NotFound`, `Conflict`."""
        await self._registry.refresh()
        entry, _ = await self._registry.find(model)
        split = read_split(body, secrets.token_hex(_ID_BYTES), entry.info, now=await self._store.now())
        check_versions(split, entry.info, lambda version: _ready_slots(entry, version))
        await change_rollout(self._store, model, lambda rollout: rollout.divide(kept_split(split)))
        await self._registry.refresh()
        return await self.view(model)

    async def end(self, model: str) -> None:
        """Raises `NotFound` for a model without a split."""
        await self._registry.refresh()
        await self._registry.find(model)
        if not self._kept(model):
            raise _no_split(model)
        await change_rollout(self._store, model, lambda rollout: rollout.divide({}))
        await self._registry.refresh()

    async def view(self, model: str) -> dict[str, Any]:
        """Raises `NotFound` for a model without a split."""
        await self._registry.look_again()
        entry, _ = await self._registry.find(model)
        if (own := split_in(entry)) is None:
            raise _no_split(model)
        return await self._view(entry, own.split)

    def _kept(self, model: str) -> dict[str, Any]:
        stored = self._registry.rollouts.get(model)
        return stored.rollout.split if stored else {}

    async def _view(self, entry: ModelEntry, split: Split) -> dict[str, Any]:
        figures = figures_of(await counts_of(self._store, entry.info, split.figures))
        shares = split.shares()
        rows = {version: _row(figures.get(version), share) for version, share in shares.items()}
        canary, shadow = split.canary, split.shadow
        return {
            "model": entry.name,
            "versions": rows,
            "sticky": split.sticky or None,
            "made_at": rfc3339(split.made_at),
            "shadow": await self._shadow_view(entry.info, split.id, shadow, figures) if shadow else None,
            "canary": await self._canary_view(entry.info, split, canary) if canary else None,
        }

    async def _shadow_view(
        self, info: ModelInfo, id: str, shadow: Shadow, figures: Mapping[str, VersionFigures]
    ) -> dict[str, Any]:
        counts = await counts_of(self._store, info, id)
        compared = {what: counts.get(f"shadow,{what}", 0) for what in _COPIES}
        row = _row(figures.get(shadow.version), shadow.share)
        return {"version": shadow.version, "tolerance": shadow.tolerance, **row, "compared": compared}

    async def _canary_view(self, info: ModelInfo, split: Split, canary: Canary) -> dict[str, Any]:
        view: dict[str, Any] = {
            "version": canary.version,
            "state": canary.state.value,
            "share": canary.share,
            "step": canary.step,
            "steps": list(canary.steps),
            "step_s": canary.step_s,
            "max_errors": canary.max_errors,
            "max_p99": canary.max_p99,
            "min_samples": canary.min_samples,
            "since": rfc3339(canary.since),
            "decisions": [_decision_view(decision) for decision in reversed(split.decisions)],
        }
        if split.is_deciding:
            said, _ = await verdict_now(self._store, info, split, canary)
            return {**view, "why": said.reason}
        return {**view, "why": split.decisions[-1].reason if split.decisions else ""}


def _ready_slots(entry: ModelEntry, version: str) -> int:
    served = entry.versions.get(version)
    return served.capacity.ready_slots if served else 0


def _row(figures: VersionFigures | None, share: float) -> dict[str, Any]:
    known = figures or VersionFigures()
    return {
        "share": round(share, 6),
        "jobs": known.samples,
        "errors": known.errors,
        "error_rate": known.error_rate if known.samples else None,
        "p50_s": known.quantile_s(0.5),
        "p99_s": known.p99_s,
    }


def _decision_view(decision: Decision) -> dict[str, Any]:
    return {
        "at": rfc3339(decision.at),
        "version": decision.version,
        "move": decision.move.value,
        "from": decision.before,
        "to": decision.after,
        "why": decision.reason,
    }


def _no_split(model: str) -> NotFound:
    return NotFound(
        f"model {model!r} has no split: its default version gets all requests that name none",
        hint=f"PUT /v1/models/{model}/split makes one.",
    )
