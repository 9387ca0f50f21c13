"""What a slot gets to work with, and the observers of its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.broker.blobs.files import BlobStore
from penstock.broker.records import (
    Change,
    Claim,
    Message,
    Settled,
)
from penstock.handlers.metrics.samples import MetricSample
from penstock.model_spec import ModelInfo, ModelSpec
from penstock.workers.ipc.frames import BatchDone
from penstock.workers.slot.batch import Batch, Release, Retry
from penstock.workers.slot.child.events import Cause

if TYPE_CHECKING:
    # A slot gets these from its worker, and loads none of the code that reaches the store.
    from penstock.broker.store.sync import RedisStore
    from penstock.workers.slot.needless import NeedlessBlobs


class WakeUpListener(Protocol):
    """What `WakeUps` offers."""

    def fileno(self) -> int: ...

    def read(self) -> list[Message]: ...

    def close(self) -> None: ...


class ReadMessages(Protocol):
    """Takes up the messages that a claim found in the queue, beside jobs or instead. Raises `StoreUnavailable`.

    The slot's thread calls it. What stays in the store is found again.
    """

    def __call__(self, store: RedisStore, claim: Claim, queue: str, *, spec: ModelSpec, info: ModelInfo) -> None: ...


class Observer:
    """Base class of the parts that count or log the events of slots; a subclass overrides the events that it needs.

    The slots' threads call these methods, so none of them may block.
    """

    @property
    def wants_every_batch(self) -> bool:
        """Whether to call it for each batch, and not only for failures. `Observers` asks from time to time."""
        return True

    def profile_dir(self, batch: Batch) -> str:
        """The folder in which the child is to record this batch; empty for nearly every batch."""
        return ""

    def on_claimed(self, spec: ModelSpec, batch: Batch) -> None: ...

    def on_said(self, spec: ModelSpec) -> None:
        """Items of a running batch reported: a sign of life."""

    def on_ran(self, spec: ModelSpec, batch: Batch, done: BatchDone) -> None: ...

    def on_settled(self, spec: ModelSpec, batch: Batch, answers: Sequence[Settled], store_s: float) -> None:
        """`batch` holds the jobs that ended, maybe some of those claimed. `store_s`: how long the store and the blobs took.

        For an observer that does not want every batch it is called only if one of these jobs did not succeed.
        """

    def on_given_back(self, spec: ModelSpec, debt: Retry | Release, answers: Sequence[Settled]) -> None:
        """Jobs were given back to the queue; `answers` says which of them the store took."""

    def on_changed(self, changes: Sequence[Change]) -> None:
        """A call to the store also changed other jobs: took them back, or ended them without a run."""

    def on_lost(self, spec: ModelSpec, cause: Cause, batch: Batch) -> None:
        """The child did not bring this batch back."""

    def on_child_ended(self, spec: ModelSpec, why: str) -> None:
        """A child ended: `crashed`, `timeout`, `recycled`, `device` or `unloadable`. Not called at the slot's own end."""

    def on_lease_lost(self, spec: ModelSpec, how: str) -> None:
        """`lost`: the store took the lease back; `lapsed`: it was not confirmed in time."""

    def on_store_failed(self, part: str) -> None:
        """The store did not answer a call."""

    def on_loaded(self, spec: ModelSpec, load_s: float) -> None: ...

    def on_unloadable(self, spec: ModelSpec, error: str) -> None: ...

    def on_measured(self, spec: ModelSpec, slot: str, samples: Sequence[MetricSample]) -> None:
        """The handler of this slot counted something in metrics of its own."""


# A worker whose beat stands still forgets the oldest of them.
TALLY_MAX = 20_000


class BatchTally:
    """What the slots of a worker note of each batch, for a beat to count. Safe to append to from any thread.

    `settled`: queue, reason of release, seconds from claim to settlement, and for each job the seconds that it had waited when
    it was claimed. `busy`: queue, seconds that a batch kept its slot busy.
    """

    def __init__(self) -> None:
        self.settled: deque[tuple[str, str, float, Sequence[float]]] = deque(maxlen=TALLY_MAX)
        self.busy: deque[tuple[str, float]] = deque(maxlen=TALLY_MAX)


class Observers:
    """The observers of one slot. `of_batches` are those that want every batch, such as a profiler that records.

    Any thread may call `ask`: the tuple is replaced as a whole.
    """

    def __init__(self, *observers: Observer, tallies: Sequence[BatchTally] = ()) -> None:
        self.all = observers
        # None if no part counts all batches.
        self.tallies = tuple(tallies)
        self.of_batches: tuple[Observer, ...] = ()
        self.ask()

    def ask(self) -> None:
        """Ask each of them again whether it wants every batch."""
        self.of_batches = tuple(observer for observer in self.all if observer.wants_every_batch)

    def notify(self, what: Callable[[Observer], None]) -> None:
        """Tell all observers of an event that is not the usual course of a batch."""
        for observer in self.all:
            what(observer)


# Stands for all models; no model's name has this character.
ALL_MODELS = "*"


@dataclass(frozen=True, slots=True)
class SlotContext:
    """What a slot is given to work with. Durations in seconds; outputs over `inline_output_bytes` become blobs."""

    open_store: Callable[[], RedisStore]
    # Subscribes to a queue under the name of the slot's incarnation there.
    listen: Callable[[str, str], WakeUpListener]
    blobs: BlobStore
    needless: NeedlessBlobs
    observers: Observers
    lease_s: float
    inline_output_bytes: int
    # The versions that a caller of the model may name, and the version for callers who name none.
    info: Callable[[ModelSpec], ModelInfo] = lambda spec: ModelInfo(spec.name, spec.version, versions={spec.version: None})
    # Called when an operator has changed a model.
    on_rollout: Callable[[], None] = lambda: None
    # Where the model lies on this machine, and where it came from; None while it is being fetched.
    locate: Callable[[ModelSpec], tuple[ModelSpec, str] | None] = lambda spec: (spec, "")
    # Reads the messages that claims bring; None if no extension sends any.
    read_messages: ReadMessages | None = None
    # Fields of the batch policy that no setting sets: for these the handler's own wish holds.
    declared_policy: frozenset[str] = frozenset()
    # The models whose slots are to claim nothing, `ALL_MODELS` if none is to. Another thread changes it in place.
    paused: Set[str] = frozenset()
