"""The models and workers that this gateway knows: declared at start, completed by the workers, at most a second old."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs
import structlog

from penstock.broker.backlog import Backlog, SlotCapacity, capacity_of, on_demand
from penstock.broker.partitions import queues_of_model
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredModel, StoredRollout
from penstock.errors import StoreUnavailable
from penstock.gateway.asgi.negotiation import MULTIPART
from penstock.gateway.models.finding import merged, unknown_model, unknown_version
from penstock.gateway.models.parts import Headers, ModelsPart, VersionChooser, chooser_of
from penstock.gateway.models.slots import VersionSlots, scaling_of, slots_of
from penstock.gateway.models.starts import SlotStarts
from penstock.gateway.models.validators import Validators
from penstock.job import Job
from penstock.model_spec import ModelInfo, SlotInfo, VersionInfo, WorkerInfo
from penstock.rollout import Rollout, followed

log = structlog.get_logger(__name__)

REFRESH_S = 0.5
# The registry is refreshed before a refusal for an unknown model or a missing worker, but not more often than this.
IMPATIENT_S = 0.1
NOTE_REFUSED_S = 10.0
_UNKNOWN = VersionInfo(accepts=())


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version as a submit needs it. `info` is None until a worker has loaded the version.

    `scale`: the slots per worker process that an operator set; None: as the settings say. `is_paused`: an operator paused
    the model. `chosen`: the words of jobs whose version a chooser picked; empty: the request named it, or it is the
    default.
    """

    name: str
    info: VersionInfo | None
    validator: jsonschema_rs.Validator | None
    capacity: SlotCapacity
    scale: int | None = None
    is_paused: bool = False
    chosen: Mapping[str, str] = field(default_factory=dict)
    # The media types that the version accepts; empty while not known.
    accepts: tuple[str, ...] = field(init=False)
    # Bodies are stored unchanged: only the model's own code reads them, even forms and JSON.
    takes_raw: bool = field(init=False)

    def __post_init__(self) -> None:
        # Attributes, not properties, because every request reads them.
        object.__setattr__(self, "accepts", (self.info or _UNKNOWN).accepts)
        object.__setattr__(self, "takes_raw", MULTIPART in self.accepts)

    @property
    def is_off(self) -> bool:
        """Whether an operator scaled it to no slots, or paused it: its jobs wait on purpose."""
        return self.is_paused or (self.scale == 0 and not self.capacity.ready_slots)

    @property
    def input_schema(self) -> dict[str, Any]:
        """The schema that the validator was built from; empty while not known."""
        return (self.info or _UNKNOWN).input_schema or {}


@dataclass(frozen=True, slots=True)
class ModelEntry:
    info: ModelInfo
    default: VersionEntry
    versions: dict[str, VersionEntry]
    backlog: Backlog = field(default_factory=Backlog)
    # Identifies the current state of its rollout; empty without one.
    mark: str = ""
    # None: requests that name no version get the default one.
    chooser: VersionChooser | None = None
    # The number of worker processes with a ready slot of the model.
    workers: int = 0
    wanted_slots: int = 0
    is_paused: bool = False

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def ready_slots(self) -> int:
        return sum(version.capacity.ready_slots for version in self.versions.values())


class ModelRegistry:
    """`models` is replaced as a whole and never changed in place, so its readers need no lock."""

    def __init__(self, store: AsyncStore, declared: Sequence[ModelInfo], parts: Iterable[ModelsPart] = ()) -> None:
        self._store = store
        self._declared = {info.name: info for info in declared}
        self._validators = Validators()
        self._backlogs: dict[str, Backlog] = {}
        self._starts = SlotStarts()
        self._measuring: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        self._seen_at = -math.inf
        self._refreshes = itertools.count(1)
        self._newest = 0
        self._stored: Mapping[str, StoredModel] = {}
        self.parts = tuple(parts)
        # Called with the live workers at each refresh.
        self.watchers: list[Callable[[Sequence[WorkerInfo]], None]] = []
        self.workers: list[WorkerInfo] = []
        self.rollouts: dict[str, StoredRollout] = {}
        self.models: dict[str, ModelEntry] = {}

    async def start(self) -> None:
        """Knows the declared models even if the store cannot be reached; refreshes until `close`."""
        self._rebuild({}, [])
        try:
            await self.announce()
            await self.refresh()
        except StoreUnavailable as error:
            log.warning("registry_blind", reason=error.message)
        self._spawn(self._refresh_for_ever())

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def declared_names(self) -> list[str]:
        """The models that must be served before this gateway is ready: its settings' models, or else all known ones."""
        return sorted(self._declared.keys() & self.models.keys() or self.models)

    def is_streaming(self, job: Job) -> bool:
        """Whether the job's version yields chunks; True if unknown."""
        entry = self.models.get(job.model)
        version = entry.versions.get(job.version) if entry is not None else None
        return version is None or version.info is None or version.info.streams

    def stored(self, model: str) -> StoredModel:
        return self._stored.get(model, StoredModel())

    def rollout(self, model: str) -> Rollout:
        return self.rollouts.get(model, StoredRollout()).rollout

    def slots(self, model: str, version: str) -> VersionSlots:
        """The wanted, ready and loading slots of the version."""
        stored = self.rollouts.get(model, StoredRollout())
        return slots_of(self.workers, model, version, scale=stored.rollout.scale.get(version), mark=stored.mark)

    def known_versions(self, model: str) -> set[str]:
        """All announced versions, including those that are no longer served."""
        info = self.stored(model).info
        return set(info.versions) if info else set()

    def named_versions(self, model: str) -> set[str]:
        """The versions that settings name: this gateway's own, or those of a live worker."""
        own = self._declared.get(model)
        declared = (version for worker in self.workers for version in worker.declared.get(model, ()))
        return {*(own.versions if own else ()), *declared}

    async def now(self) -> float:
        """The store's clock, which also dates the workers' starts and announcements."""
        return await self._store.now()

    async def refresh(self) -> None:
        """Raises `StoreUnavailable`, and then changes nothing."""
        begun = next(self._refreshes)
        # Workers announce a version's inputs before its slot is ready, so the models are read after the slots.
        workers, rollouts = await asyncio.gather(self._store.workers(), self._store.rollouts())
        models = await self._store.models()
        # Two refreshes may overlap and end in the other order: the older one must not undo a change.
        if begun < self._newest:
            return
        self._newest, self.rollouts = begun, rollouts
        self._rebuild(models, workers)
        self._seen_at = time.monotonic()

    async def find(self, model: str, version: str = "", headers: Headers | None = None) -> tuple[ModelEntry, VersionEntry]:
        """The model and its version (empty: the default one); raises `NotFound` with near matches.

        `headers`: of a request for work. If it names no version, the model's chooser picks one.
        """
        entry = self.models.get(model)
        if entry is None or (version and version not in entry.versions):
            await self.look_again()
            entry = self.models.get(model)
        if entry is None:
            raise unknown_model(model, self.models)
        if not version and entry.chooser is not None and headers is not None:
            return entry, entry.chooser.choose(headers)
        wanted = entry.versions.get(version) if version else entry.default
        if wanted is None:
            raise unknown_version(entry, version)
        return entry, wanted

    async def look_again(self) -> None:
        """Refresh unless the last refresh is recent. Without the store, nothing changes."""
        async with self._lock:
            if time.monotonic() - self._seen_at < IMPATIENT_S:
                return
            try:
                await self.refresh()
            except StoreUnavailable:
                self._seen_at = time.monotonic()

    def measure(self, entry: ModelEntry) -> None:
        """Read the model's queue statistics in the background, one read at a time."""
        if entry.name not in self._measuring:
            self._measuring.add(entry.name)
            self._spawn(self._measure(entry))

    async def note_refused(self, entry: ModelEntry) -> None:
        """Note that an answer-now request was refused without a ready slot, for scalers of workers."""
        before, entry.backlog.refused_at = entry.backlog.refused_at, time.monotonic()
        if entry.backlog.refused_at - before > NOTE_REFUSED_S:
            with suppress(StoreUnavailable):
                await self._store.note_refused(entry.name)

    async def _measure(self, entry: ModelEntry) -> None:
        try:
            parts = await self._store.stats_of(queues_of_model(entry.info))
            entry.backlog.record_parts(parts, time.monotonic(), batch_size=entry.info.policy.max_batch_size)
        except StoreUnavailable as error:
            log.debug("backlog_unknown", model=entry.name, reason=error.message)
        finally:
            self._measuring.discard(entry.name)

    async def announce(self) -> None:
        """Announce the declared models to other gateways without overwriting what workers announced."""
        stored = await self._store.models()
        for name, declared in self._declared.items():
            announced = stored.get(name, StoredModel())
            known = announced.info
            wanted = declared if known is None else merged(declared, known)
            if known is None or not declared.versions.keys() <= known.versions.keys():
                # If another gateway was quicker, its announcement is enough: each gateway has its versions in its own settings.
                await self._store.swap_model(announced, wanted)

    async def _refresh_for_ever(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh()
                # The store may have been unreachable at the start, or may come back empty later.
                if not self._declared.keys() <= self._stored.keys() | self.rollouts.keys():
                    await self.announce()
                for part in self.parts:
                    if part.on_refresh is not None:
                        await part.on_refresh(self)
            except StoreUnavailable as error:
                log.debug("registry_blind", reason=error.message)
            except Exception:
                # The task must survive a bug or an unreadable entry, or the registry would never change again.
                log.exception("registry_unreadable")

    def _rebuild(self, stored: Mapping[str, StoredModel], workers: list[WorkerInfo]) -> None:
        slots: dict[tuple[str, str], list[SlotInfo]] = {}
        for worker in workers:
            for slot in () if worker.drained else worker.slots:
                slots.setdefault((slot.model, slot.version), []).append(slot)
        for look in self.watchers:
            look(workers)
        self.workers = workers
        self._stored = stored
        self.models = {
            name: self._entry(info, slots)
            for name in sorted(stored.keys() | self._declared.keys())
            if (info := self._followed(merged(self._declared.get(name), self.stored(name).info))) is not None
        }
        self._forget_others()

    def _forget_others(self) -> None:
        """Forget the starts of versions that are gone, which would fill memory over months."""
        served = {(entry.name, version) for entry in self.models.values() for version in entry.versions}
        self._validators.forget_all_but(served)
        self._starts.forget_all_but(served)
        for model in self._backlogs.keys() - self.models.keys():
            del self._backlogs[model]

    def _followed(self, info: ModelInfo) -> ModelInfo | None:
        rollout = self.rollouts.get(info.name)
        return followed(info, rollout.rollout if rollout else None)

    def _entry(self, info: ModelInfo, slots: Mapping[tuple[str, str], list[SlotInfo]]) -> ModelEntry:
        names, now = {*info.versions, info.default_version}, time.monotonic()
        backlog = self._backlogs.setdefault(info.name, Backlog())
        is_wanted, rollout = backlog.is_wanted(now), self.rollout(info.name)
        versions = {
            version: VersionEntry(
                version,
                info.versions.get(version),
                self._validators.of(info.name, version, info.versions.get(version)),
                self._capacity((info.name, version), slots.get((info.name, version), ()), now, is_wanted=is_wanted),
                rollout.scale.get(version),
                is_paused=rollout.paused,
            )
            for version in sorted(names)
        }
        mark = self.rollouts.get(info.name, StoredRollout()).mark
        chooser = chooser_of(self.parts, info.name, rollout, versions)
        workers = sum(map(_serves(info.name), self.workers))
        wanted = sum(slots_of(self.workers, info.name, version).wanted for version in versions)
        default = versions[info.default_version]
        return ModelEntry(info, default, versions, backlog, mark, chooser, workers, wanted, rollout.paused)

    def _capacity(self, key: tuple[str, str], slots: Sequence[SlotInfo], now: float, *, is_wanted: bool) -> SlotCapacity:
        if self.rollout(key[0]).paused:
            # Slots of a paused model are loaded but claim no jobs.
            return SlotCapacity(latency_s=capacity_of(slots).latency_s)
        capacity = self._starts.known(key, capacity_of(slots), now, is_wanted=is_wanted)
        return capacity if capacity.ready_slots else on_demand(capacity, slots, scaling_of(self.workers, *key))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _serves(model: str) -> Callable[[WorkerInfo], bool]:
    return lambda worker: not worker.drained and any(slot.model == model and slot.state == "ready" for slot in worker.slots)
