"""The roster of slots: each runs in a thread of its own, and one that was removed stays until its batches have ended."""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.broker.blobs.files import BlobStore
from penstock.broker.store.sync import RedisStore
from penstock.broker.store.wake_ups import WakeUps
from penstock.model_spec import ModelSpec, ProfileWish, SlotInfo
from penstock.settings.remote_sources import is_remote
from penstock.settings.source_kinds import kind_of
from penstock.settings.tables import Settings
from penstock.workers.devices.pins import Pin
from penstock.workers.fleet.parts import WorkerParts
from penstock.workers.fleet.profiling import Profiler
from penstock.workers.fleet.rollouts import Key, key_of
from penstock.workers.fleet.versions import ServedVersions
from penstock.workers.slot.context import Observer, Observers, SlotContext
from penstock.workers.slot.needless import NeedlessBlobs
from penstock.workers.slot.slot import Slot

if TYPE_CHECKING:
    from penstock.workers.fetch.fetches import ModelFetches


@dataclass(frozen=True, slots=True)
class RunningSlot:
    slot: Slot
    thread: threading.Thread
    profiler: Profiler
    observers: Observers

    @property
    def key(self) -> Key:
        return key_of(self.slot.spec)

    def info(self) -> SlotInfo:
        return replace(self.slot.facts.info(), profile=self.profiler.info())


class Roster:
    """`observers` are those of every slot's batches; `on_change` is called when what the slots announce has changed, and
    when one of them heard of a changed rollout.

    Celery's main thread adds and removes slots, and so does the beat's; any thread may read.
    """

    def __init__(
        self,
        settings: Settings,
        versions: ServedVersions,
        blobs: BlobStore,
        needless: NeedlessBlobs,
        store_url: str,
        parts: WorkerParts,
        *,
        observers: Sequence[Observer],
        on_change: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._versions = versions
        self._blobs, self._needless = blobs, needless
        self._observers = observers
        self._on_change = on_change
        self._store_url = store_url
        self._parts = parts
        # Slots look for their models in their own threads.
        self._guard = threading.Lock()
        self._fetches: ModelFetches | None = None
        self._running: list[RunningSlot] = []
        # Removed slots whose batches have not ended; their leases must stand until then.
        self._leaving: list[RunningSlot] = []
        self._ended_by_gone: Counter[str] = Counter()
        # D4: names this process; an earlier one may have had the same pid on the same host.
        self._incarnation = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._added = 0
        self._drain_by: float | None = None

    @property
    def slots(self) -> list[Slot]:
        """The slots that take jobs."""
        return [one.slot for one in self._running]

    def infos(self) -> list[SlotInfo]:
        return [one.info() for one in self._running]

    def alive(self) -> list[Slot]:
        """The slots whose thread still runs, those that leave included."""
        return [one.slot for one in self._alive()]

    def taken(self) -> list[tuple[ModelSpec, Pin]]:
        """The places that a further slot cannot have for itself. A model that an extension drives takes none."""
        return [(slot.spec, slot.pin) for slot in self.alive() if not slot.spec.driven_by]

    def count(self, spec: ModelSpec) -> int:
        return len(self._of(key_of(spec)))

    def add(self, spec: ModelSpec, pin: Pin) -> None:
        """Start a slot there."""
        if self._settings.worker.pinning == "none":
            pin = replace(pin, cores=())
        name = f"{self._incarnation}.{self._added}"
        self._added += 1
        profiler = Profiler(spec, self._settings.profile_dir, on_change=self._on_change)
        observers = Observers(*self._observers, profiler, _ChangeObserver(self._on_change), tallies=self._parts.tallies)
        slot = self._slot(spec, pin, self._context(spec, observers), name)
        thread = threading.Thread(target=slot.run, name=f"slot-{spec.name}-{self._added}", daemon=True)
        self._running.append(RunningSlot(slot, thread, profiler, observers))
        if self._drain_by is not None:
            # The worker began to stop while this slot was planned.
            slot.drain(by=self._drain_by)
        thread.start()

    def _slot(self, spec: ModelSpec, pin: Pin, context: SlotContext, name: str) -> Slot:
        stand_in = self._parts.stand_in(spec)
        if stand_in is None:
            return Slot(spec, pin, context, name=name)
        return Slot(spec, pin, context, name=name, new_child=stand_in.new_child, inputs=stand_in.inputs)

    def remove_one(self, spec: ModelSpec) -> None:
        """Let one slot of this version end what it runs, and then leave: one that runs nothing if there is one."""
        self._remove(max(reversed(self._of(key_of(spec))), key=_spareable))

    def remove_all(self, key: Key) -> None:
        """Let all slots of this version end what they run, and then leave."""
        for one in self._of(key):
            self._remove(one)

    def pass_wishes(self, wishes: Mapping[str, ProfileWish], now: float) -> None:
        """Hand each slot the profile that the store asks of its model; `now` is by the store's clock."""
        for one in self._running:
            one.profiler.wish(wishes.get(one.slot.spec.name), now)
        self.ask_observers()

    def not_resting(self) -> set[str]:
        """The paused models with a slot that may still be handed a job, because its offer is not withdrawn yet."""
        slots = (one.slot for one in self._running)
        return {slot.spec.name for slot in slots if slot.is_expecting and self._versions.is_paused(slot.spec)}

    def ask_observers(self) -> None:
        """Ask the observers again whether they want every batch. A profiler does while it records, Flower's feed while it has
        listeners.
        """
        for one in [*self._running, *self._leaving]:
            one.observers.ask()

    def ended(self) -> Counter[str]:
        """How many jobs this worker has ended, by model."""
        total = Counter(self._ended_by_gone)
        for one in [*self._running, *self._leaving]:
            total[one.slot.spec.name] += one.slot.ended
        return total

    def drain(self, *, by: float) -> None:
        """Stop taking jobs; what still runs at `by` (monotonic) is given back."""
        self._drain_by = by
        for slot in self.alive():
            slot.drain(by=by)

    def give_back(self) -> None:
        """Give back what still runs, at once. Takes no lock, because signal handlers call it."""
        for slot in self.alive():
            slot.drain(by=time.monotonic())

    def wait(self, timeout_s: float) -> bool:
        """Whether every slot has ended, after at most `timeout_s`."""
        until = time.monotonic() + timeout_s
        for one in [*self._running, *self._leaving]:
            one.thread.join(timeout=max(0.0, until - time.monotonic()))
        return not self._alive()

    def _alive(self) -> list[RunningSlot]:
        return [one for one in [*self._running, *self._leaving] if one.thread.is_alive()]

    def _of(self, key: Key) -> list[RunningSlot]:
        return [one for one in self._running if one.key == key]

    def _remove(self, leaver: RunningSlot) -> None:
        for one in [one for one in self._leaving if not one.thread.is_alive()]:
            self._ended_by_gone[one.slot.spec.name] += one.slot.ended
            self._leaving.remove(one)
        self._leaving.append(leaver)
        self._running.remove(leaver)
        if not self._of(leaver.key):
            self.forget_files(leaver.slot.spec)
        # It ends when its batch does, or at the batch's own limit: its place is not worth throwing work away.
        leaver.slot.drain(by=math.inf)

    def forget_files(self, spec: ModelSpec) -> None:
        """The next load of this version gets the files that its source names then."""
        if self._fetches:
            self._fetches.forget(key_of(spec))

    def _locate(self, spec: ModelSpec) -> tuple[ModelSpec, str] | None:
        """Finds a model's files. A worker whose models are all files that lie here loads nothing of fetching."""
        if not is_remote(spec.source) and kind_of(spec.source) is None:
            return spec, ""
        with self._guard:
            self._fetches = self._fetches or self._new_fetches()
        return self._fetches.locate(spec)

    def _new_fetches(self) -> ModelFetches:
        from penstock.workers.fetch.cache import CacheLimits
        from penstock.workers.fetch.fetches import ModelFetches

        cache = self._settings.models_cache
        limits = CacheLimits(cache.max_bytes, is_offline=cache.offline, install_max_bytes=cache.install_max_bytes)
        return ModelFetches(self._settings.models_dir, limits, self._kept_source)

    def _kept_source(self, spec: ModelSpec) -> str:
        """Where this version came from when it was first loaded, by any worker. Raises `StoreUnavailable`."""
        # D76: asked once per fetch, which takes seconds and has a thread of its own.
        store = RedisStore(self._store_url, name=f"penstock-fetch-{os.getpid()}")
        try:
            known = next((info for info in store.models() if info.name == spec.name), None)
        finally:
            store.close()
        version = known.versions.get(spec.version) if known else None
        return version.source if version else ""

    def _context(self, spec: ModelSpec, observers: Observers) -> SlotContext:
        return SlotContext(
            open_store=lambda: RedisStore(self._store_url, name=f"penstock-slot-{os.getpid()}"),
            listen=lambda queue, incarnation: WakeUps(self._store_url, queue, incarnation).open(),
            on_rollout=self._on_change,
            blobs=self._blobs,
            needless=self._needless,
            observers=observers,
            lease_s=self._settings.worker.lease_s,
            inline_output_bytes=self._settings.store.inline_output_bytes,
            info=self._versions.info,
            locate=self._locate,
            declared_policy=self._versions.declared_policy(spec),
            paused=self._versions.paused,
            read_messages=self._parts.read_messages,
        )


def _spareable(one: RunningSlot) -> int:
    """The order in which slots are removed: first one that cannot run, then one that loads, then an idle one."""
    return {"failed": 3, "loading": 2}.get(one.slot.state, 0 if one.slot.leases() else 1)


class _ChangeObserver(Observer):
    """Has a slot's new state announced at once; the next beat may be seconds away."""

    wants_every_batch = False

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def on_loaded(self, *_: Any) -> None:
        self._on_change()

    def on_unloadable(self, *_: Any) -> None:
        self._on_change()
