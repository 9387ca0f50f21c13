"""The running call as its handler sees it: how far its items are, and whether they are still wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from threading import get_ident
from typing import Any, NamedTuple, Protocol

from penstock.errors import HandlerContractError
from penstock.model_spec import Limits

# As long as a sentence; the note is stored with the job.
NOTE_CHARS = 200


class Reporter(Protocol):
    """Where the reports of items go. `batch` and `place` name an item."""

    def progress(self, batch: int, place: int, fraction: float, note: str) -> None: ...

    def restart(self, batch: int, place: int) -> None: ...

    def chunk(self, batch: int, place: int, data: bytes) -> None: ...

    def is_unwanted(self, batch: int, place: int) -> bool: ...

    def progressed_at(self, batch: int, place: int) -> float: ...

    def begin(self, batch: int) -> None: ...

    def facts(self, batch: int) -> Sequence[Any]: ...


class Told(Protocol):
    """What is known of the items of a batch besides their inputs."""

    def requests(self, places: Sequence[int], reporter: Reporter | None) -> list[Any]: ...


class RunningItem:
    """One item of the call that runs now."""

    __slots__ = ("_batch", "_place", "_reporter")

    def __init__(self, reporter: Reporter | None, batch: int, place: int) -> None:
        self._reporter, self._batch, self._place = reporter, batch, place

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the item is: a `fraction` from 0 to 1, and a `note` of at most 200 characters for its caller.

        Callers see the latest of a tenth of a second. The time limit of a run, `max_run_s`, starts again at each call.
        """
        if self._reporter is not None:
            text = str(note)[:NOTE_CHARS].encode("utf-8", "replace").decode()
            self._reporter.progress(self._batch, self._place, min(1.0, max(0.0, float(fraction))), text)

    @property
    def cancelled(self) -> bool:
        """Whether the item was cancelled. Its output will be dropped, so its run may end early."""
        return self._reporter is not None and self._reporter.is_unwanted(self._batch, self._place)

    @property
    def progressed_at(self) -> float:
        """When the item last said how far it is (monotonic); minus infinity if it has not."""
        return self._reporter.progressed_at(self._batch, self._place) if self._reporter is not None else -inf

    def begin(self) -> None:
        """Say that the item begins only now, after it waited for others: its time limit counts from now."""
        if self._reporter is not None:
            self._reporter.begin(self._batch)

    def restart(self) -> None:
        """Restart the item's stream, because its call is repeated."""
        if self._reporter is not None:
            self._reporter.restart(self._batch, self._place)

    def send(self, chunk: bytes) -> None:
        """The next chunk of the item's stream, as JSON. Waits while too many are on their way."""
        if self._reporter is not None:
            self._reporter.chunk(self._batch, self._place, chunk)


class InHand(NamedTuple):
    """What one piece of the handler's code works on: places in a batch, and what is known of the items there."""

    batch: int
    places: Sequence[int]
    told: Told | None


class RunningCall:
    """Which items the handler runs now. Outside of a worker there is no `reporter`, and what is reported goes nowhere.

    The thread that runs the handler sets plain attributes, because this is on every job's way. `batch`: 0 where no job waits
    for the items one by one. Places in the batch: of `all` items that run, of those of the present `call`, and of those that
    are in the handler's hands (`places`): a call that raised is repeated in parts. `told`: what is known of these items, while
    they run. `beside`: the threads of the other stages. `stream_bytes` bounds the stream of an item.
    """

    __slots__ = ("all", "batch", "beside", "call", "max_run_s", "of_task", "places", "reporter", "stream_bytes", "told")

    def __init__(self) -> None:
        self.reporter: Reporter | None = None
        self.stream_bytes = Limits().max_stream_bytes
        self.max_run_s = Limits().max_run_s
        self.batch = 0
        self.all: Sequence[int] = ()
        self.call: Sequence[int] = ()
        self.places: Sequence[int] = ()
        self.told: Told | None = None
        self.beside: set[int] = set()
        # Where items are tasks that run side by side: what the present task works on.
        self.of_task: ContextVar[InHand] | None = None

    @property
    def items(self) -> list[RunningItem]:
        """The items of the call in its order."""
        return self.items_of(self.in_hand)

    def items_of(self, hand: InHand) -> list[RunningItem]:
        """These items, in order."""
        reporter = self.reporter if hand.batch else None
        return [RunningItem(reporter, hand.batch, place) for place in hand.places]

    @property
    def in_hand(self) -> InHand:
        """The items that the calling code works on."""
        own = None if self.of_task is None else self.of_task.get(None)
        return own or InHand(self.batch, self.places, self.told)

    def requests(self) -> list[Any]:
        """The `Request`s of the call's items. Raises `HandlerContractError` in the thread of another stage."""
        if get_ident() in self.beside:
            # Another batch is in `inference` meanwhile, and its requests would be taken for this batch's.
            raise HandlerContractError(
                "context.requests is for inference, which runs beside preprocess and postprocess; annotate preprocess with "
                "list[penstock.Request[...]] and hand on what postprocess needs"
            )
        hand = self.in_hand
        return [] if hand.told is None else hand.told.requests(hand.places, self.reporter if hand.batch else None)

    @contextmanager
    def among(self, chosen: Sequence[int]) -> Iterator[None]:
        """The handler looks at the items at these places of the call alone. Outside of a worker there are none."""
        places = self.places
        self.places = [places[at] for at in chosen if at < len(places)]
        try:
            yield
        finally:
            self.places = places

    @contextmanager
    def only(self, at: int) -> Iterator[None]:
        """The handler looks at the item at this place of the call alone."""
        places = self.places
        self.places = places[at : at + 1]
        try:
            yield
        finally:
            self.places = places
