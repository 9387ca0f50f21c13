"""What model code prints, line by line with a mark that says for which batch and item (`workers/ipc/said.py`)."""

from __future__ import annotations

import sys
import threading
from io import TextIOWrapper

from penstock.handlers.running.call import RunningCall
from penstock.workers.ipc.said import mark_of, marked

# `batch`: the one whose inputs this thread reads or whose outputs it writes; 0 or absent otherwise.
serving = threading.local()


class Speaker:
    """For whom the model's code speaks now. `running` is known once the model is loaded."""

    def __init__(self) -> None:
        self.running = RunningCall()

    def mark(self) -> str:
        """Empty while no batch is under way."""
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
        super().write(marked(text, mark, begins_line=begins) if mark else text)
        return len(text)


def mark_lines() -> Speaker:
    """Mark what this process prints from now on."""
    speaker = Speaker()
    for name in ("stdout", "stderr"):
        setattr(sys, name, MarkedOutput(getattr(sys, name), speaker))
    return speaker
