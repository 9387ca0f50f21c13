"""Draws concepts.svg beside this file: `python -m docs.images.concepts`. README and docs/start/concepts.md show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.images.draw import svg, text

_WIDTH, _HEIGHT = 760, 268
_TITLE, _TEXT = 16, 13
# The boxes stand on one line; the arrows between them are at half their height.
_TOP, _BOTTOM = 46, 146
_MIDDLE = (_TOP + _BOTTOM) / 2


@dataclass(frozen=True, slots=True)
class Box:
    """A station of a job: how many of its jobs are drawn, and the state that they have there."""

    name: str
    state: str
    left: float
    width: float
    jobs: int

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


QUEUE = Box("queue", "queued", 122, 172, 7)
BATCH = Box("batch", "running", 394, 112, 4)
RESULT = Box("result", "succeeded or failed", 606, 142, 5)


def concepts() -> str:
    """Queue, batch and result, the arrows between them, and the store below."""
    parts = [part for box in (QUEUE, BATCH, RESULT) for part in _box(box)]
    parts += _arrow(4, QUEUE.left, "a request", "becomes a job")
    parts += _arrow(QUEUE.right, BATCH.left, "claim", "under a lease")
    parts += _arrow(BATCH.right, RESULT.left, "finish", "once per job")
    parts += _way_back()
    parts += _store()
    return svg("A job waits in a queue, runs in a batch and becomes a result", parts, _HEIGHT, _WIDTH)


def _box(box: Box) -> Iterator[str]:
    yield f'<rect class="box" x="{box.left:g}" y="{_TOP}" width="{box.width:g}" height="{_BOTTOM - _TOP}" rx="6"/>'
    yield text(box.middle, _TOP - 10, box.name, _TITLE, "name", "middle")
    yield text(box.middle, _BOTTOM - 12, box.state, _TEXT, "", "middle")
    start = box.middle - (box.jobs * 20 - 4) / 2
    for place in range(box.jobs):
        yield f'<rect class="head" x="{start + 20 * place:g}" y="{_TOP + 30}" width="16" height="24" rx="3"/>'


def _arrow(start: float, end: float, above: str, below: str) -> Iterator[str]:
    yield f'<path class="arrow" d="M{start:g} {_MIDDLE:g}H{end - 8:g}"/>'
    yield f'<path class="head" d="M{end:g} {_MIDDLE:g}l-10 -5v10z"/>'
    middle = (start + end) / 2 - 4
    yield text(middle, _MIDDLE - 8, above, _TEXT, "name", "middle")
    yield text(middle, _MIDDLE + 20, below, _TEXT, "", "middle")


def _way_back() -> Iterator[str]:
    """What becomes of jobs whose worker is lost."""
    low = _BOTTOM + 24
    yield f'<path class="arrow" d="M{BATCH.middle:g} {_BOTTOM}V{low}H{QUEUE.middle:g}V{_BOTTOM + 8}"/>'
    yield f'<path class="head" d="M{QUEUE.middle:g} {_BOTTOM}l-5 10h10z"/>'
    middle = (QUEUE.middle + BATCH.middle) / 2
    yield text(middle, low + 18, "the worker is lost: queued again, attempt 2", _TEXT, "", "middle")


def _store() -> Iterator[str]:
    top = _BOTTOM + 60
    yield f'<rect class="box" x="4" y="{top}" width="{_WIDTH - 8}" height="52" rx="6"/>'
    yield text(_WIDTH / 2, top + 22, "store", _TITLE, "name", "middle")
    said = "Redis or Valkey: every job is a record here before its caller gets an answer"
    yield text(_WIDTH / 2, top + 41, said, _TEXT, "", "middle")


def main() -> None:
    (Path(__file__).parent / "concepts.svg").write_text(concepts(), "utf-8")


if __name__ == "__main__":
    main()
