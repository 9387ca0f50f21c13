"""What a reset leaves behind: versions that no settings name, forgotten once no job can need them; then models without any.

Every worker looks with each beat. All may do so at once, and be killed anywhere: each step is a compare-and-set, and the
rollout, which keeps a version from callers, goes only after the registry's entry, from which it would else come back.
"""

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
# A run may lack jobs for a moment and still ask for its version again; more of them than these at once are not looked at.
_MOST_RUNS = 1_000


def are_there(models: Iterable[ModelInfo], rollouts: Iterable[Rollout]) -> bool:
    return any(rollout.undone for rollout in rollouts) or not all(info.versions for info in models)


def forget(store: RedisStore, *, now: float) -> None:
    """Raises `StoreUnavailable`; the next beat goes on. `now` is Unix time."""
    # The registry is read first: its entry is not touched if anybody announced a version after the rollouts were read.
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
    if not gone or not _is_pruned(store, model, entry, gone - named):
        return
    if store.swap_rollout(model, found, found.rollout.without(gone)):
        log.info(VERSIONS_FORGOTTEN, model=model, versions=sorted(gone - named))


def _is_pruned(store: RedisStore, model: str, entry: StoredModel, gone: Set[str]) -> bool:
    """Whether the registry names none of these any more."""
    if entry.info is None or not gone & entry.info.versions.keys():
        return True
    return store.swap_model(model, entry, pruned(entry.info, gone))


def _is_needed(store: RedisStore, model: str, version: str, workers: Iterable[WorkerInfo]) -> bool:
    """By a job or a run; or a slot still has it, whose worker could announce it again."""
    if any((slot.model, slot.version) == (model, version) for worker in workers for slot in worker.slots):
        return True
    left = store.unfinished(model, version)
    return bool(left.waiting or left.running) or _has_run(store, model, version)


def _has_run(store: RedisStore, model: str, version: str) -> bool:
    """Whether a run over files is driven with this version: it submits more jobs for it, whatever gateways refuse."""
    runs: list[Run] = RunStore(store).runs(states=_LIVE, limit=_MOST_RUNS)
    # One that has only just been taken up has not told its version yet.
    return any(run.driver and run.spec.model == model and run.version in ("", version) for run in runs)


def _forget_model(store: RedisStore, model: str, entry: StoredModel) -> None:
    """Not while a job of it is kept: who collects results, and whose files belong to none, looks at the registry's models."""
    if not store.jobs(model, limit=1) and store.swap_model(model, entry, None):
        log.info(MODEL_FORGOTTEN, model=model)
