"""Decides about canaries: reads what the store has counted, and moves the split by compare-and-set.

Every gateway does this at every refresh, and any of them may be killed anywhere. A decision follows from the store's record,
figures and clock alone. If two gateways decide the same, the second one's swap fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredRollout
from penstock.errors import StoreUnavailable
from penstock.extensions.splits.canary import Canary, CanaryState, Move, Verdict, verdict
from penstock.extensions.splits.figures import VersionFigures, figures_of, total
from penstock.extensions.splits.gateway.entry import split_in
from penstock.extensions.splits.split import Split, kept_split
from penstock.extensions.splits.store import counts_of
from penstock.model_spec import ModelInfo
from penstock.rollout import Rollout

if TYPE_CHECKING:
    from penstock.gateway.models.registry import ModelEntry

log = structlog.get_logger(__name__)
# Gateways look twice a second.
_BLIND_S = 5.0
EVENTS = {
    CanaryState.RUNNING: "canary_stepped_up",
    CanaryState.STEPPED_BACK: "canary_stepped_back",
    CanaryState.PROMOTED: "canary_promoted",
    CanaryState.KEPT: "canary_kept",
}


class CanaryJudge:
    """Moves the canaries of a store's models for one gateway."""

    def __init__(self, store: AsyncStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        # When a canary was first seen without a ready worker (monotonic), by model and version.
        self._unready: dict[tuple[str, str], float] = {}
        self._looked_at = clock()

    async def judge(self, rollouts: Mapping[str, StoredRollout], entries: Sequence[ModelEntry]) -> None:
        """Move the canaries that are due. `rollouts` are the rollouts from which the entries were made.

        Raises `StoreUnavailable`; what is left is moved at the next refresh.
        """
        self._forget_if_blind()
        splits = [(entry, own.split) for entry in entries if (own := split_in(entry)) is not None]
        looked = [(entry, split, canary) for entry, split in splits if (canary := split.canary) is not None]
        self._unready = {key: at for key, at in self._unready.items() if key in {(e.name, c.version) for e, _, c in looked}}
        failures = []
        for entry, split, canary in looked:
            unready_s = self._unready_s(entry, canary.version)
            stored = rollouts.get(entry.name)
            if stored is None:
                continue
            try:
                await self._judge(split, canary, entry.info, stored, unready_s=unready_s)
            except StoreUnavailable as error:
                # The next canary's model may be on another node of a cluster.
                failures.append(error)
        if failures:
            raise failures[0]

    def _forget_if_blind(self) -> None:
        """A gateway that was frozen or had no store may have missed a worker's return, so it restarts its counts."""
        now, before = self._clock(), self._looked_at
        self._looked_at = now
        if now - before > _BLIND_S:
            self._unready.clear()

    async def _judge(self, split: Split, canary: Canary, info: ModelInfo, stored: StoredRollout, *, unready_s: float) -> None:
        said, now = await verdict_now(self._store, info, split, canary, unready_s=unready_s)
        if said.move is Move.STAY:
            return
        after = split.moved(canary, said, now)
        if await self._store.swap_rollout(info.name, stored, _moved(stored.rollout, after)):
            _log(info.name, after)

    def _unready_s(self, entry: ModelEntry, version: str) -> float:
        """For how long this gateway has seen no worker that is ready to run the version."""
        key, now = (entry.name, version), self._clock()
        served = entry.versions.get(version)
        if served is not None and served.capacity.ready_slots:
            self._unready.pop(key, None)
            return 0.0
        return now - self._unready.setdefault(key, now)


def is_deciding(entry: ModelEntry) -> bool:
    """Whether the model has a canary to decide about."""
    own = split_in(entry)
    return own is not None and own.split.is_deciding


async def verdict_now(
    store: AsyncStore, info: ModelInfo, split: Split, canary: Canary, *, unready_s: float = 0.0
) -> tuple[Verdict, float]:
    """What to do with the canary, and the time of that decision by the store's clock. Raises `StoreUnavailable`."""
    figures = figures_of(await counts_of(store, info, split.figures))
    own = figures.get(canary.version, VersionFigures())
    # A version of no weight may be the shadow, whose copies wait behind all other work.
    others = total(figures[version] for version, weight in split.weights.items() if weight > 0.0 and version in figures)
    now = await store.now()
    return verdict(canary, own, others, unready_s=unready_s, now=now), now


def _moved(rollout: Rollout, split: Split) -> Rollout:
    """A promoted version becomes the default, so runs and later requests that name no version get it too."""
    canary = split.canary
    promoted = canary is not None and canary.state is CanaryState.PROMOTED
    changed = rollout.divide(kept_split(split))
    return replace(changed, default_version=canary.version) if canary is not None and promoted else changed


def _log(model: str, after: Split) -> None:
    decision, canary = after.decisions[-1], after.canary
    assert canary is not None
    level = log.warning if decision.move is Move.BACK else log.info
    level(
        EVENTS[canary.state],
        model=model,
        version=decision.version,
        before=decision.before,
        after=decision.after,
        reason=decision.reason,
    )
