"""What model code prints, line by line with a mark that says for which batch and item (`workers/ipc/said.py`)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

from penstock.handlers.running.call import RunningCall
from penstock.workers.ipc.said import mark_of, marked

# `batch`: the one whose inputs this thread reads or whose outputs it writes; 0 or absent otherwise.
serving = threading.local()
# The mark of lines of the warm-up, and how many of them are passed on: the warm-up makes many calls.
_WARM_UP = "warm-up: "
_WARM_UP_LINES = 3


class Speaker:
    """The batch and item for which the model's code prints now. `running` is known once the model is loaded."""

    def __init__(self) -> None:
        self.running = RunningCall()
        self._is_warming_up = False
        self._warm_up_lines = 0

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """The first lines of the block are passed on, and how many more there were."""
        self._is_warming_up = True
        try:
            yield
        finally:
            self._is_warming_up = False
            if self._warm_up_lines > _WARM_UP_LINES:
                sys.stdout.write(f"{_WARM_UP}{self._warm_up_lines - _WARM_UP_LINES} more lines like these\n")
                sys.stdout.flush()

    def leaves_out(self, text: str) -> bool:
        if not self._is_warming_up:
            return False
        is_over = self._warm_up_lines >= _WARM_UP_LINES
        self._warm_up_lines += text.count("\n")
        return is_over

    def mark(self) -> str:
        """Empty while no batch is under way."""
        if self._is_warming_up:
            return _WARM_UP
        own = getattr(serving, "batch", 0)
        if own:
            return mark_of(own)
        batch, places, _ = self.running.in_hand
        return mark_of(batch, places[0] + 1 if len(places) == 1 else 0) if batch else ""


class MarkedOutput(TextIOWrapper):
    """Stands for `sys.stdout` or `sys.stderr`, and writes to the same file."""

    def __init__(self, stream: TextIOWrapper, speaker: Speaker) -> None:
        through = stream.write_through
        super().__init__(stream.buffer, stream.encoding, stream.errors, line_buffering=True, write_through=through)
        self._speaker = speaker
        self._begins_line = True

    def write(self, text: str, /) -> int:
        mark = self._speaker.mark()
        begins, self._begins_line = self._begins_line, text.endswith("\n") if text else self._begins_line
        if not self._speaker.leaves_out(text):
            super().write(marked(text, mark, begins_line=begins) if mark else text)
        return len(text)


def mark_lines() -> Speaker:
    """Mark what this process prints from now on."""
    speaker = Speaker()
    for name in ("stdout", "stderr"):
        setattr(sys, name, MarkedOutput(getattr(sys, name), speaker))
    return speaker
