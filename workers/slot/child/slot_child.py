"""What a slot needs of the part that runs its batches: the manager of a child process, or the stand-in of an extension."""

from __future__ import annotations

from collections.abc import Callable
from selectors import BaseSelector
from typing import Protocol

from penstock.model_spec import ModelSpec
from penstock.workers.devices.pins import Pin
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.ending import Restarts
from penstock.workers.slot.child.events import Event
from penstock.workers.slot.child.in_flight import InFlight

Locate = Callable[[ModelSpec], tuple[ModelSpec, str] | None]


class SlotChild(Protocol):
    """Used by the slot's thread only. `state` is loading, ready or failed; `error` says why it failed.

    `runs_model_code`: an item may end it, so suspects run alone. `asks`: items are given with the facts of their jobs.
    """

    in_flight: InFlight
    is_paused: bool
    state: str
    error: str
    load_s: float
    start_s: float
    provider: str
    source: str
    asks: bool
    restarts: Restarts

    @property
    def runs_model_code(self) -> bool: ...

    @property
    def pid(self) -> int: ...

    @property
    def is_taking(self) -> bool: ...

    @property
    def is_taking_shards(self) -> bool: ...

    @property
    def is_worn(self) -> bool: ...

    def tend(self, now: float) -> list[Event]: ...

    def due_at(self, *, is_draining: bool) -> float: ...

    def end_if_hung(self, now: float) -> bool: ...

    def handle(self, source: str, mask: int, now: float) -> list[Event]: ...

    def give(self, batch: Batch, now: float) -> None: ...

    def pause(self, now: float, *, is_paused: bool) -> None: ...

    def reload(self, now: float) -> None: ...

    def close(self) -> None: ...


class NewChild(Protocol):
    """Makes the part that runs the batches of a slot; `selector` reports its events to the slot."""

    def __call__(
        self, spec: ModelSpec, pin: Pin, selector: BaseSelector, locate: Locate, *, max_batch_size: int
    ) -> SlotChild: ...
