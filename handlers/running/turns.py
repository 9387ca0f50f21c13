"""How many items of an async handler run at once: the others wait for their turn."""

from __future__ import annotations

import asyncio
from collections import deque


class ItemTurns:
    """Used on one event loop. Items of jobs go before rows of runs, but a row that waits goes first if no row runs."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._jobs: deque[asyncio.Future[None]] = deque()
        self._rows: deque[asyncio.Future[None]] = deque()
        self._rows_running = 0
        self._was_row = False

    async def begin(self, *, is_row: bool) -> bool:
        """Wait until the item may run. True if it had to wait."""
        if self._free:
            self._free -= 1
            self._note(is_row=is_row)
            return False
        turn = asyncio.get_running_loop().create_future()
        (self._rows if is_row else self._jobs).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end(is_row=is_row)
            raise
        return True

    def end(self, *, is_row: bool) -> None:
        """The item has run: the next waiting item may run."""
        self._rows_running -= is_row
        is_rows_turn = not self._rows_running and not (self._was_row and self._jobs)
        for waiting in (self._rows, self._jobs) if is_rows_turn else (self._jobs, self._rows):
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    self._note(is_row=waiting is self._rows)
                    turn.set_result(None)
                    return
        self._free += 1

    def _note(self, *, is_row: bool) -> None:
        self._rows_running += is_row
        self._was_row = is_row
