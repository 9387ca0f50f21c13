"""Forgets what a reset or an unload leaves behind: versions that no settings name, once no job can need them, and models
without versions.

Every worker looks at each beat. All of them may do so at once and be killed anywhere, because each step is a compare-and-set.
Queues are closed first, for whoever stood still and submits by what it read before. Then the registry's entry goes, and the
rollout last, which keeps callers from a version that the entry still names.
"""

# D23: why a reset changes the rollout instead of deleting it. D142: closed queues.

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

import structlog

from penstock.broker.partitions import all_unfinished, queues_of_model
from penstock.broker.store import ops
from penstock.broker.store.registry import StoredModel, StoredRollout, drop_wish
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.job import model_of, queue_of
from penstock.model_spec import ModelInfo, WorkerInfo
from penstock.rollout import Rollout, over
from penstock.run import RunState
from penstock.workers.fleet.announce import pruned

log = structlog.get_logger(__name__)
STILL_IN_USE = "partitions_still_in_use"
EMPTIED = "partitions_emptied"
_LOOK_EVERY_S = 30.0
VERSIONS_FORGOTTEN = "versions_forgotten"
MODEL_FORGOTTEN = "model_forgotten"

_LIVE = [state for state in RunState if not state.final]
_RUNS_PER_CALL = 100


def may_exist(models: Iterable[ModelInfo], rollouts: Iterable[Rollout], *, now: float) -> bool:
    """Whether there may be something to forget, so that most beats need not read more."""
    is_over = any(rollout.undone or over(rollout, set(), lambda version: False, now=now) for rollout in rollouts)
    return is_over or not all(info.versions for info in models)


def forget(store: RedisStore, *, now: float) -> None:
    """Forget what nothing needs. Raises `StoreUnavailable`; the next beat then goes on. `now` is by the store's clock."""
    # The registry is read before the rollouts: if a worker announces a version meanwhile, the swap of its entry fails.
    models, rollouts, workers = store.stored_models(), store.stored_rollouts(), store.workers()
    for model, rollout in rollouts.items():
        _forget_versions(store, models.get(model, StoredModel()), model, rollout, workers, now=now)
    for model, entry in models.items():
        if model not in rollouts and entry.info is not None and not entry.info.versions:
            _forget_model(store, model, entry)


def _forget_versions(
    store: RedisStore, entry: StoredModel, model: str, stored: StoredRollout, workers: Sequence[WorkerInfo], *, now: float
) -> None:
    named = {version for worker in workers for version in worker.declared.get(model, ())}
    queues = queues_of_model(entry.info or ModelInfo(model))
    gone = over(stored.rollout, named, lambda version: _is_needed(store, queues, version, workers), now=now)
    if not gone:
        return
    if _prune_entry(store, model, entry, gone - named) and store.swap_rollout(model, stored, stored.rollout.without(gone)):
        wish = store.profile_wishes().get(model)
        if wish is not None and wish.version in gone - named:
            store.run(drop_wish(model, wish))
        log.info(VERSIONS_FORGOTTEN, model=model, versions=sorted(gone - named))
    else:
        _reopen_loaded(store, model, queues, gone - named)


def _reopen_loaded(store: RedisStore, model: str, queues: Sequence[str], gone: Set[str]) -> None:
    """Somebody else changed the model meanwhile, and may have loaded one of these versions again."""
    closed = {queue: store.retired(queue) for queue in queues}
    rollout = store.stored_rollouts().get(model, StoredRollout()).rollout
    reopen(store, closed, gone & (rollout.added.keys() - rollout.removed.keys()))


def reopen(store: RedisStore, closed: Mapping[str, Mapping[str, int]], versions: Set[str]) -> None:
    """`closed`: what `retired` said of each queue, before the registry was read."""
    for queue, since in closed.items():
        store.run_all([ops.reopen(queue, version, since[version]) for version in since.keys() & versions])


def _prune_entry(store: RedisStore, model: str, entry: StoredModel, gone: Set[str]) -> bool:
    """Take these versions out of the registry's entry; whether it names none of them now."""
    if entry.info is None or not gone & entry.info.versions.keys():
        return True
    return store.swap_model(model, entry, pruned(entry.info, gone))


def _is_needed(store: RedisStore, queues: Sequence[str], version: str, workers: Iterable[WorkerInfo]) -> bool:
    """Whether a job or a run needs the version, or a slot still has it, whose worker could announce it again. If nothing does,
    its queues take no more jobs of it.
    """
    model = model_of(queues[0])
    if any((slot.model, slot.version) == (model, version) for worker in workers for slot in worker.slots):
        return True
    return _has_run(store, model, version) or not _is_retired(store, queues, version)


def _is_retired(store: RedisStore, queues: Sequence[str], version: str = "") -> bool:
    """Close those of the queues that hold no job of the version, or no record at all; whether all are closed."""
    left = all_unfinished(store.run_all([ops.retire(queue, version) for queue in queues]))
    return not (left.waiting or left.running)


def _has_run(store: RedisStore, model: str, version: str) -> bool:
    """Whether a run is driven with this version: a run submits jobs to it although gateways refuse them to callers, also if it
    has none at this moment.
    """
    runs, text, after = RunStore(store), f'"model":"{model}"', ""
    while True:
        page = runs.page(states=_LIVE, text=text, after=after, limit=_RUNS_PER_CALL)
        # The record of a run that was taken up only now has no version yet.
        if any(run.driver and run.spec.model == model and run.version in ("", version) for run in page.runs):
            return True
        if not (after := page.next_after):
            return False


def _forget_model(store: RedisStore, model: str, entry: StoredModel) -> None:
    """Only when no record of it is left: sweeps, and the collector of orphaned blobs, look only at the registry's models."""
    queues = queues_of_model(entry.info or ModelInfo(model))
    if _is_retired(store, queues) and store.swap_model(model, entry, None):
        log.info(MODEL_FORGOTTEN, model=model)


# D116: docs/design/store.md
class PartitionKeeper:
    """Forgets partitions that no settings name, once nothing of them is kept. For the beat's thread."""

    def __init__(self) -> None:
        self._look_at = float("-inf")
        self._told: set[str] = set()

    def look(self, store: RedisStore, models: Mapping[str, ModelInfo], now: float) -> None:
        """`models`: as they were announced. `now` is by the store's clock. Raises `StoreUnavailable`."""
        left = [info for info in models.values() if info.held > info.partitions]
        if not left or now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        for info in left:
            self._look(store, info)

    def _look(self, store: RedisStore, info: ModelInfo) -> None:
        queues = [queue_of(info.name, number) for number in range(info.partitions, info.held)]
        if _is_retired(store, queues):
            stored = store.stored_models()[info.name]
            if stored.info == info and store.swap_model(info.name, stored, replace(info, held=info.partitions)):
                log.info(EMPTIED, model=info.name, partitions=info.partitions, were=info.held)
            return
        stats = [store.stats(queue) for queue in queues]
        waiting = sum(one.depth + one.delayed + one.leased for one in stats)
        if waiting and info.name not in self._told:
            self._told.add(info.name)
            log.error(
                STILL_IN_USE,
                model=info.name,
                partitions=info.partitions,
                were=info.held,
                jobs=waiting,
                hint=f"partitions of models.{info.name} was lowered while jobs wait in the higher ones. Workers run these as "
                "before and nothing is lost, and new jobs go to the lower ones: keep workers running until they have ended.",
            )
