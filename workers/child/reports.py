"""What running items report, on its way to the supervisor, and which of them nobody wants any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition, Lock

from penstock.workers.ipc.frames import FromChild, GiveUp, ItemReport, ItemReports

# Progress is sent at most this often: the latest counts.
_PACE_S = 0.1


class ReportSender:
    """A `Reporter` that sends frames by `write`. The handler's own threads may report as well.

    `is_used`: whether anything was ever reported or given up. Most models never do, and need no thread for it.
    """

    def __init__(self, write: Callable[[FromChild], None], *, start_thread: Callable[[Callable[[], None]], object]) -> None:
        self._write = write
        self._start_thread = start_thread
        self._changed = Condition()
        # Held by who takes what is pending and writes it, so that frames are in order.
        self._turn = Lock()
        self._pending: dict[tuple[int, int], ItemReport] = {}
        # By batch, the items that nobody wants, those of them that are late, and those of whose lateness the handler heard.
        self._unwanted: dict[int, set[int]] = {}
        self._late: dict[int, set[int]] = {}
        self._stopped: dict[int, set[int]] = {}
        self.is_used = False
        self._is_sending = False

    # The handler's side.

    def progress(self, batch: int, place: int, fraction: float, note: str) -> None:
        with self._changed:
            self._pending[batch, place] = ItemReport(place, fraction, note)
            self._changed.notify()
            self._start()

    def is_unwanted(self, batch: int, place: int) -> bool:
        if place not in self._unwanted.get(batch, ()):
            return False
        if place in self._late.get(batch, ()):
            self._stopped.setdefault(batch, set()).add(place)
        return True

    def _start(self) -> None:
        if not self._is_sending:
            self.is_used = self._is_sending = True
            self._start_thread(self._send)

    # The pipeline's side.

    def give_up(self, order: GiveUp) -> None:
        if order.late:
            self._late.setdefault(order.batch, set()).update(order.places)
        self._unwanted.setdefault(order.batch, set()).update(order.places)
        self.is_used = True

    def end(self, batch: int) -> set[int]:
        """The batch has run: send what it reported, before its outcomes are. The items that stopped at their deadline."""
        self._write_pending()
        stopped = self._stopped.get(batch, set())
        for by_batch in (self._unwanted, self._late, self._stopped):
            for ended in [number for number in by_batch if number <= batch]:
                by_batch.pop(ended)
        return stopped

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._pending))
            self._write_pending()
            time.sleep(_PACE_S)

    def _write_pending(self) -> None:
        with self._turn:
            with self._changed:
                pending, self._pending = self._pending, {}
            for batch in sorted({batch for batch, _ in pending}):
                self._write(ItemReports(batch, [report for (number, _), report in pending.items() if number == batch]))
