"""Forgets what a reset or an unload leaves behind: versions that no settings name, once no job can need them, and models
without versions.

Every worker looks at each beat. All of them may do so at once and be killed anywhere, because each step is a compare-and-set.
The registry's entry goes first and the rollout second: the rollout keeps callers from a version that the entry still names.
"""

# D23: why a reset changes the rollout instead of deleting it.

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import structlog

from penstock.broker.store.registry import StoredModel, StoredRollout
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.model_spec import ModelInfo, WorkerInfo
from penstock.rollout import Rollout, over
from penstock.run import Run, RunState
from penstock.workers.fleet.announce import pruned

log = structlog.get_logger(__name__)
VERSIONS_FORGOTTEN = "versions_forgotten"
MODEL_FORGOTTEN = "model_forgotten"

_LIVE = [state for state in RunState if not state.final]
# A run that has no job at this moment may still submit more to its version. At most this number of live runs is read.
_MOST_RUNS = 1_000


def may_exist(models: Iterable[ModelInfo], rollouts: Iterable[Rollout], *, now: float) -> bool:
    """Whether there may be something to forget, so that most beats need not read more."""
    is_over = any(rollout.undone or over(rollout, set(), lambda version: False, now=now) for rollout in rollouts)
    return is_over or not all(info.versions for info in models)


def forget(store: RedisStore, *, now: float) -> None:
    """Forget what nothing needs. Raises `StoreUnavailable`; the next beat then goes on. `now` is by the store's clock."""
    # The registry is read before the rollouts: if anybody announces a version meanwhile, the swap of its entry fails.
    models, rollouts, workers = store.stored_models(), store.stored_rollouts(), store.workers()
    for model, found in rollouts.items():
        _forget_versions(store, models.get(model, StoredModel()), model, found, workers, now=now)
    for model, entry in models.items():
        if model not in rollouts and entry.info is not None and not entry.info.versions:
            _forget_model(store, model, entry)


def _forget_versions(
    store: RedisStore, entry: StoredModel, model: str, found: StoredRollout, workers: Sequence[WorkerInfo], *, now: float
) -> None:
    named = {version for worker in workers for version in worker.declared.get(model, ())}
    gone = over(found.rollout, named, lambda version: _is_needed(store, model, version, workers), now=now)
    if not gone or not _prune_entry(store, model, entry, gone - named):
        return
    if store.swap_rollout(model, found, found.rollout.without(gone)):
        log.info(VERSIONS_FORGOTTEN, model=model, versions=sorted(gone - named))


def _prune_entry(store: RedisStore, model: str, entry: StoredModel, gone: Set[str]) -> bool:
    """Take these versions out of the registry's entry; whether it names none of them now."""
    if entry.info is None or not gone & entry.info.versions.keys():
        return True
    return store.swap_model(model, entry, pruned(entry.info, gone))


def _is_needed(store: RedisStore, model: str, version: str, workers: Iterable[WorkerInfo]) -> bool:
    """Whether a job or a run needs the version, or a slot still has it, whose worker could announce it again."""
    if any((slot.model, slot.version) == (model, version) for worker in workers for slot in worker.slots):
        return True
    left = store.unfinished(model, version)
    return bool(left.waiting or left.running) or _has_run(store, model, version)


def _has_run(store: RedisStore, model: str, version: str) -> bool:
    """Whether a run is driven with this version: a run submits jobs to it although gateways refuse them to callers."""
    runs: list[Run] = RunStore(store).runs(states=_LIVE, limit=_MOST_RUNS)
    # The record of a run that was taken up only now has no version yet.
    return any(run.driver and run.spec.model == model and run.version in ("", version) for run in runs)


def _forget_model(store: RedisStore, model: str, entry: StoredModel) -> None:
    """Only when no record of it is left: sweeps, and the collector of orphaned blobs, look only at the registry's models."""
    if not store.newest(model, limit=1) and store.swap_model(model, entry, None):
        log.info(MODEL_FORGOTTEN, model=model)
