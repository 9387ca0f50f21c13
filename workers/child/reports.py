"""Reports of running items on their way to the supervisor, and which items are no longer wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Lock
from time import monotonic

from penstock.workers.ipc.frames import BatchFacts, FromChild, GiveUp, ItemReport, ItemReports, JobFacts, WantFacts

# Progress is sent at most this often: the latest counts. Chunks are sent at once, and together with those that came meanwhile.
_PACE_S = 0.1
# A generator waits while this much of its streams is on its way.
_MOST_BYTES = 1 << 16


@dataclass(slots=True)
class _Pending:
    """What an item said since the last frame."""

    fraction: float | None = None
    note: str = ""
    restarts: int = 0
    chunks: list[bytes] = field(default_factory=list)


class ReportSender:
    """A `Reporter` that sends frames by `write`. The handler's own threads may report as well.

    `is_used`: whether anything was ever reported or given up. Most models never do, and need no thread for it.
    """

    def __init__(self, write: Callable[[FromChild], None], *, start_thread: Callable[[Callable[[], None]], object]) -> None:
        self._write = write
        self._start_thread = start_thread
        self._changed = Condition()
        # Held while a thread takes and writes what is pending, so that frames stay in order.
        self._turn = Lock()
        self._pending: dict[tuple[int, int], _Pending] = {}
        self._bytes = 0
        # By item whose stream has begun: how often it restarted.
        self._restarts: dict[tuple[int, int], int] = {}
        # By batch: the unwanted items, the late ones among them, and those that the handler has seen to be late.
        self._unwanted: dict[int, set[int]] = {}
        self._late: dict[int, set[int]] = {}
        self._stopped: dict[int, set[int]] = {}
        # Of the latest batch whose handler looked at its requests.
        self._facts = BatchFacts(0, [])
        # When each item last said how far it is, and batches that have begun only now.
        self._progressed_at: dict[tuple[int, int], float] = {}
        self._begun: list[int] = []
        self.is_used = False
        self._is_sending = False

    # The handler's side.

    def progress(self, batch: int, place: int, fraction: float, note: str) -> None:
        with self._changed:
            self._progressed_at[batch, place] = monotonic()
            pending = self._of(batch, place)
            pending.fraction, pending.note = fraction, note
            self._changed.notify_all()
            self._start()

    def progressed_at(self, batch: int, place: int) -> float:
        """When the item last said how far it is (monotonic)."""
        return self._progressed_at.get((batch, place), float("-inf"))

    def begin(self, batch: int) -> None:
        """The batch waited in this process, and begins now."""
        with self._changed:
            self._begun.append(batch)
            self._changed.notify_all()
            self._start()

    def restart(self, batch: int, place: int) -> None:
        """What the item yields from now on is a stream of its own; of the one before, nothing more is sent."""
        if (batch, place) not in self._restarts:
            return
        with self._changed:
            self._restarts[batch, place] += 1
            pending = self._of(batch, place)
            self._bytes -= sum(map(len, pending.chunks))
            pending.restarts, pending.chunks = self._restarts[batch, place], []

    def chunk(self, batch: int, place: int, data: bytes) -> None:
        """Waits while the supervisor is behind."""
        with self._changed:
            self._start()
            self._changed.wait_for(lambda: not self.is_full)
            self._restarts.setdefault((batch, place), 0)
            self._of(batch, place).chunks.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    @property
    def is_full(self) -> bool:
        """Whether a generator has to wait."""
        return self._bytes >= _MOST_BYTES

    def _of(self, batch: int, place: int) -> _Pending:
        pending = self._pending.get((batch, place))
        if pending is None:
            restarts = self._restarts.get((batch, place), 0)
            pending = self._pending[batch, place] = _Pending(restarts=restarts)
        return pending

    def is_unwanted(self, batch: int, place: int) -> bool:
        if place not in self._unwanted.get(batch, ()):
            return False
        if place in self._late.get(batch, ()):
            self._stopped.setdefault(batch, set()).add(place)
        return True

    def facts(self, batch: int) -> list[JobFacts]:
        """Those of the batch's jobs, which the supervisor sends on request."""
        self._write(WantFacts(batch))
        with self._changed:
            self._changed.wait_for(lambda: self._facts.batch == batch)
            return self._facts.facts

    def _start(self) -> None:
        if not self._is_sending:
            self.is_used = self._is_sending = True
            self._start_thread(self._send)

    # The side of the child's threads.

    def on_facts(self, answer: BatchFacts) -> None:
        with self._changed:
            self._facts = answer
            self._changed.notify_all()

    def give_up(self, order: GiveUp) -> None:
        if order.late:
            self._late.setdefault(order.batch, set()).update(order.places)
        self._unwanted.setdefault(order.batch, set()).update(order.places)
        self.is_used = True

    def end(self, batch: int, *, oldest: int = 0) -> set[int]:
        """The batch has run: send what it reported, before its outcomes are. The items that stopped at their deadline.

        `oldest`: the first of the batches that run beside it, if any do.
        """
        self._write_pending()
        stopped = self._stopped.get(batch, set())
        before = oldest or batch
        for by_batch in (self._unwanted, self._late, self._stopped):
            for ended in [number for number in list(by_batch) if number == batch or number < before]:
                by_batch.pop(ended)
        with self._changed:
            for by_item in (self._restarts, self._progressed_at):
                for item in [item for item in by_item if item[0] == batch or item[0] < before]:
                    by_item.pop(item)
        return stopped

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._pending or self._begun))
            self._write_pending()
            with self._changed:
                self._changed.wait_for(lambda: self._bytes > 0, timeout=_PACE_S)

    def _write_pending(self) -> None:
        with self._turn:
            with self._changed:
                pending, self._pending = self._pending, {}
                begun, self._begun = self._begun, []
            for batch in sorted({batch for batch, _ in pending} | set(begun)):
                said = [_report(place, one) for (number, place), one in pending.items() if number == batch]
                self._write(ItemReports(batch, said))
            with self._changed:
                self._bytes -= sum(len(chunk) for one in pending.values() for chunk in one.chunks)
                self._changed.notify_all()


def _report(place: int, one: _Pending) -> ItemReport:
    return ItemReport(place, one.fraction, one.note, one.restarts, one.chunks)
