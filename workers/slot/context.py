"""What a slot is given to work with, and who is told of what it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.broker.blobs.files import BlobStore
from penstock.broker.records import Change, Settled
from penstock.model_spec import DEFAULT_VERSION, ModelSpec
from penstock.workers.ipc.frames import BatchDone
from penstock.workers.slot.batcher import Batch
from penstock.workers.slot.child_events import Cause
from penstock.workers.slot.lease import WakeUpListener
from penstock.workers.slot.settlement import Finish, Release, SlotStore, TryAgain


class Observer:
    """Whoever counts or tells what slots do: overrides what it wants to hear. Called in the slots' threads: must not block."""

    def claimed(self, spec: ModelSpec, held: Batch) -> None: ...

    def ran(self, spec: ModelSpec, held: Batch, done: BatchDone) -> None: ...

    def settled(self, spec: ModelSpec, finish: Finish, answers: Sequence[Settled], store_s: float) -> None:
        """`store_s`: how long the store took for it, blobs included."""

    def given_back(self, spec: ModelSpec, debt: TryAgain | Release, answers: Sequence[Settled]) -> None:
        """Jobs went back to the queue, or were to."""

    def changed(self, changes: Sequence[Change]) -> None:
        """What a call to the store brought about beside what it was asked for: jobs taken back, ended unrun."""

    def lost(self, spec: ModelSpec, cause: Cause, held: Batch) -> None:
        """A batch did not come back."""

    def child_ended(self, spec: ModelSpec, why: str) -> None:
        """A child is gone: `crashed`, `timeout`, `recycled`, `device` or `unloadable`. Not one stopped with its slot."""

    def lease_lost(self, spec: ModelSpec, how: str) -> None:
        """`lost`: the store took it back; `lapsed`: not confirmed in time."""

    def store_failed(self, part: str) -> None:
        """A call had no answer."""

    def loaded(self, spec: ModelSpec, load_s: float) -> None: ...

    def unloadable(self, spec: ModelSpec, error: str) -> None: ...


@dataclass(frozen=True, slots=True)
class SlotContext:
    """What a slot is given to work with. Durations in seconds; outputs over `inline_output_bytes` become blobs."""

    open_store: Callable[[], SlotStore]
    listen: Callable[[str, str], WakeUpListener]
    blobs: BlobStore
    observers: tuple[Observer, ...]
    lease_s: float
    inline_output_bytes: int
    default_version: Callable[[], str] = lambda: DEFAULT_VERSION
    # Fields of the batch policy that nobody set: there the handler's own wish holds.
    declared_policy: frozenset[str] = frozenset()
    # Where the child is to record this batch; empty for nearly every one.
    profile_dir: Callable[[Batch], str] = lambda _: ""
