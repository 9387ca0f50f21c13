"""A model that reads the file that its input names, as hostile model code would."""

from __future__ import annotations

from pathlib import Path

import penstock


class Peek(penstock.Handler):
    max_wait_s = 0.0

    def inference(self, batch: list[str], /) -> list[str]:
        return [_read(Path(path)) for path in batch]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except PermissionError:
        return "refused"
