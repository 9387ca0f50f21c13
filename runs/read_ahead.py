"""Reads the next batches of a source in a thread while the driver works on earlier ones."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.runs.rows import RowBatch, RowSource
from penstock.runs.shards.sizing import MOST_BYTES

_BATCHES = 2


class ReadAhead:
    """`rows` is called before each read and returns the batch's maximum of rows. `take` raises errors of the source."""

    def __init__(self, source: RowSource, after: dict[str, Any] | None, *, rows: Callable[[], int]) -> None:
        self._source, self._after, self._rows = source, after, rows
        self._changed = threading.Condition()
        self._batches: deque[RowBatch] = deque()
        self._error: BaseException | None = None
        self._over = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def ended(self) -> bool:
        """True when every batch of the source has been taken."""
        with self._changed:
            return self._over and not self._batches and self._error is None

    def take(self, most_rows: int) -> RowBatch | None:
        """The next batch, if it has been read and has at most `most_rows` rows."""
        with self._changed:
            if self._batches:
                if len(self._batches[0]) > most_rows:
                    return None
                batch = self._batches.popleft()
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            return None

    def wait(self, timeout_s: float) -> None:
        """Wait until a batch can be taken or the source has ended."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._batches) or self._over, timeout_s)

    def close(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._read_all()
        except Exception as error:  # noqa: BLE001 - raised where the batches are taken
            self._error = error
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _read_all(self) -> None:
        after = self._after
        while self._await_room():
            batch = self._source.read(after, rows=self._rows(), size_bytes=MOST_BYTES)
            if batch is None:
                return
            after = batch.after
            with self._changed:
                self._batches.append(batch)
                self._changed.notify_all()

    def _await_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < _BATCHES or self._stopped)
            return not self._stopped
