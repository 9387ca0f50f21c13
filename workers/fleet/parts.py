"""What extensions bring to a worker, and what they get from it (docs/design/extensions.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry

from penstock.broker.blobs.files import BlobStore
from penstock.broker.store.sync import RedisStore
from penstock.extension import installed, load_part
from penstock.model_spec import ModelSpec, ScalingInfo, SlotInfo, WorkerInfo
from penstock.settings.tables import Settings
from penstock.workers.fleet.rollouts import Key
from penstock.workers.slot.child.slot_child import NewChild
from penstock.workers.slot.claims import Inputs
from penstock.workers.slot.context import BatchTally, Observer, ReadMessages

if TYPE_CHECKING:
    from penstock.workers.fleet.size import FleetSize


@dataclass(frozen=True, slots=True)
class WorkerHost:
    """What a worker lends to the parts of extensions. `name` is its Celery name. Any thread may call what can be called."""

    name: str
    settings: Settings
    blobs: BlobStore
    # The worker serves them if it has a port for metrics.
    metrics: CollectorRegistry
    # The queues that this worker sweeps: those of its models, and of models without a worker.
    queues: Callable[[], Collection[str]]
    queues_of: Callable[[str], Sequence[str]]
    # How many slots each version has here. Not to be called before the worker starts.
    size: Callable[[], FleetSize]
    # The slots here as they were announced last, and the workers of the registry.
    measured: Callable[[], Sequence[SlotInfo]]
    workers: Callable[[], Sequence[WorkerInfo]]
    # Whether jobs are leased to this worker now, and how many it has ended.
    is_holding: Callable[[], bool]
    ended: Callable[[], int]
    # Announces the worker again at once instead of at the next beat.
    announce: Callable[[], None]

    def open_store(self, purpose: str) -> RedisStore:
        """A connection of its own, for one thread, which closes it."""
        return RedisStore(self.settings.job_store_url, name=f"penstock-{purpose}-{os.getpid()}")


class WorkerThread(Protocol):
    """What runs as long as the worker does. Celery's main thread calls it, once each, in this order."""

    def start(self) -> None: ...

    def drain(self) -> None:
        """The worker takes no more jobs. Returns at once."""

    def stop(self) -> None:
        """No slot and no beat runs any more. Raises no `StoreUnavailable`."""


class SlotScaler(Protocol):
    """A part that changes numbers of slots. The beat's thread calls it."""

    def infos(self) -> Mapping[str, dict[str, ScalingInfo]]:
        """What is announced, by model and version."""

    def memory(self) -> Mapping[Key, int]:
        """What a slot of each version takes on its device, as far as it is known: kept for workers that start later."""


@dataclass(frozen=True, slots=True)
class ChildStandIn:
    """What runs the batches of a slot in the place of a child process, and how their inputs are read."""

    new_child: NewChild
    inputs: type[Inputs]


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """What one extension brings to a worker. What it leaves out costs nothing."""

    threads: Sequence[WorkerThread] = ()
    # Observers of every slot's batches; they are called before the worker's own metrics.
    observers: Sequence[Observer] = ()
    # Gets a line per batch without a function call; for parts that count all batches.
    tally: BatchTally | None = None
    # Runs the batches of a version; None: a child process does. Called when a slot starts.
    stand_in: Callable[[ModelSpec], ChildStandIn | None] | None = None
    # Takes up what claims find in a queue beside jobs.
    read_messages: ReadMessages | None = None
    # Called at the end of each beat with the slots as they were announced, and once after the last one, with none.
    on_beat: Callable[[RedisStore, Sequence[SlotInfo]], None] | None = None
    scaler: SlotScaler | None = None


class WorkerParts:
    """The parts of all extensions, as the worker uses them."""

    def __init__(self, parts: Sequence[WorkerPart]) -> None:
        self._parts = parts
        self._threads = [thread for part in parts for thread in part.threads]
        self._scalers = [part.scaler for part in parts if part.scaler is not None]
        self.observers = [observer for part in parts for observer in part.observers]
        self.tallies = [part.tally for part in parts if part.tally is not None]

    @staticmethod
    def load(host: WorkerHost) -> WorkerParts:
        """Those of the installed extensions."""
        return WorkerParts([load_part(one.worker)(host) for one in installed() if one.worker])

    @property
    def read_messages(self) -> ReadMessages | None:
        return next((part.read_messages for part in self._parts if part.read_messages is not None), None)

    def stand_in(self, spec: ModelSpec) -> ChildStandIn | None:
        stand_ins = (part.stand_in(spec) for part in self._parts if part.stand_in is not None)
        return next((one for one in stand_ins if one is not None), None)

    def on_beat(self, store: RedisStore, slots: Sequence[SlotInfo]) -> None:
        for part in self._parts:
            if part.on_beat is not None:
                part.on_beat(store, slots)

    def scaling(self) -> dict[str, dict[str, ScalingInfo]]:
        return {model: infos for scaler in self._scalers for model, infos in scaler.infos().items()}

    def memory(self) -> dict[Key, int]:
        return {key: size for scaler in self._scalers for key, size in scaler.memory().items()}

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def drain(self) -> None:
        for thread in self._threads:
            thread.drain()

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()
