"""Draws house.svg and job.svg beside this file: `python docs/images/draw.py`.

The tables below are the source of both pictures. tests/unit/test_pictures.py compares them with the tree, and the pictures with
what this file draws.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape


@dataclass(frozen=True, slots=True)
class Folder:
    name: str
    duty: str
    rooms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One arrow of a job's way; `source` and `target` are places in `ACTORS`, equal for work within one process."""

    source: int
    target: int
    label: str
    file: str = ""


ROOT = Path(__file__).parents[2]


def _rooms_of(name: str) -> tuple[str, ...]:
    """The packages in a folder, with those of Lua; servers that benchmarks define for comparison are left out."""
    top = ROOT / name
    packages = {path.parent for kind in ("__init__.py", "*.lua") for path in top.rglob(kind)} - {top}
    rooms = sorted(path.relative_to(top).as_posix() for path in packages)
    return tuple(room for room in rooms if not room.startswith("peers/"))


def _whole(name: str, duty: str) -> Folder:
    return Folder(name, duty, _rooms_of(name))


# From the top down: a layer may import those below it, and folders of one layer never import each other.
LAYERS = (
    (_whole("cli", "the penstock command"),),
    (_whole("tune", "finds the best settings"),),
    (_whole("loadtest", "sends load, measures"),),
    (_whole("embedded", "the store that penstock up starts"),),
    (_whole("gateway", "HTTP in, HTTP out"), _whole("workers", "claim, batch, run"), _whole("runs", "models over files")),
    (_whole("client", "Python clients"), _whole("broker", "the job store"), _whole("handlers", "model code")),
    (_whole("core", "the vocabulary"),),
)
OUTSIDE = (
    Folder(
        "extensions",
        "one folder per capability; imports the engine",
        tuple(room for room in _rooms_of("extensions") if "/" not in room),
    ),
    _whole("benchmarks", "measures this repository; imported by nobody, not in the wheel"),
)

ACTORS = ("client", "gateway", "store", "worker", "child")
STEPS = (
    Step(0, 1, "POST: check, admit", "gateway/jobs/submitting/submitter.py"),
    Step(1, 2, "submit: record, queue, fsync", "broker/functions/submit.lua"),
    Step(1, 0, "202: the job is stored", "gateway/jobs/views.py"),
    Step(2, 3, "wake-up", "broker/store/wake_ups.py"),
    Step(3, 2, "claim: a batch, under tokens", "broker/functions/claim.lua"),
    Step(3, 4, "the batch that the policy wants", "workers/slot/batcher.py"),
    Step(4, 4, "preprocess, inference, postprocess", "workers/child/threads.py"),
    Step(4, 3, "one outcome per item", "workers/ipc/frames.py"),
    Step(3, 2, "finish: settle, claim the next", "broker/functions/finish.lua"),
    Step(2, 1, "push: the result", "broker/store/notifications.py"),
    Step(1, 0, "the answer", "gateway/jobs/predict.py"),
)

WIDTH = 560
_PAD = 12
_TITLE, _TEXT, _SMALL = 16, 13.5, 12
_STYLE = """
  .back { fill: #ffffff } .box { fill: #f1f5f9; stroke: #64748b } .line { stroke: #64748b; stroke-dasharray: 3 4 }
  .arrow { stroke: #0f62a8; stroke-width: 2; fill: none } .head { fill: #0f62a8 }
  text { fill: #0f172a; font-family: system-ui, sans-serif } .name { font-weight: 700 }
  .file { fill: #475569; font-family: ui-monospace, monospace } .halo { paint-order: stroke; stroke: #ffffff; stroke-width: 5 }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117 } .box { fill: #1e293b; stroke: #94a3b8 } .line { stroke: #94a3b8 }
    .arrow { stroke: #7cc4ff } .head { fill: #7cc4ff }
    text { fill: #f1f5f9 } .file { fill: #cbd5e1 } .halo { stroke: #0d1117 }
  }
"""


def house() -> str:
    """The folders by layer."""
    parts: list[str] = []
    y = float(_PAD)
    for layer in LAYERS:
        width = (WIDTH - _PAD * (len(layer) + 1)) / len(layer)
        height = max(_height(folder, width) for folder in layer)
        for place, folder in enumerate(layer):
            parts += _folder(folder, _PAD + place * (width + _PAD), y, width, height)
        y += height + _PAD
    parts.append(text(WIDTH / 2, y + 8, "Imports point down.", _TEXT, "name", "middle"))
    y += 24
    for folder in OUTSIDE:
        height = _height(folder, WIDTH - 2 * _PAD)
        parts += _folder(folder, _PAD, y, WIDTH - 2 * _PAD, height)
        y += height + _PAD
    return svg("The folders of penstock: each layer imports those below it", parts, y)


def job() -> str:
    """The way of one job as a sequence of arrows between processes."""
    parts = [_actor(place, name) for place, name in enumerate(ACTORS)]
    y = 92.0
    for number, step in enumerate(STEPS, 1):
        parts += _step(number, step, y)
        y += 56
    bottom = y - 24
    lines = [f'<path class="line" d="M{_x(place):g} 46V{bottom:g}"/>' for place in range(len(ACTORS))]
    return svg("The way of one job", [*lines, *parts], bottom + _PAD)


def svg(title: str, parts: list[str], height: float, width: float = WIDTH) -> str:
    size = f'width="720" viewBox="0 0 {width:g} {height:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="back" width="{width:g}" height="{height:g}"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def text(x: float, y: float, words: str, size: float, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _rooms(folder: Folder, width: float) -> list[str]:
    """The rooms as lines that fit into a box."""
    return textwrap.wrap("  ".join(folder.rooms), int((width - 2 * _PAD) / (_SMALL * 0.62)))


def _height(folder: Folder, width: float) -> float:
    return 50 + 17 * len(_rooms(folder, width))


def _folder(folder: Folder, x: float, y: float, width: float, height: float) -> Iterator[str]:
    yield f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    yield text(x + _PAD, y + 21, f"{folder.name}/", _TITLE, "name")
    yield text(x + _PAD, y + 39, folder.duty, _TEXT)
    for line, rooms in enumerate(_rooms(folder, width), 1):
        yield text(x + _PAD, y + 41 + 17 * line, rooms, _SMALL, "file")


def _x(place: int) -> float:
    return WIDTH * (place + 0.5) / len(ACTORS)


def _actor(place: int, name: str) -> str:
    box = f'<rect class="box" x="{_x(place) - 46:g}" y="12" width="92" height="34" rx="6"/>'
    return box + text(_x(place), 34, name, _TITLE, "name", "middle")


def _step(number: int, step: Step, y: float) -> Iterator[str]:
    start, end = _x(step.source), _x(step.target)
    left = min(start, end) < WIDTH / 2 - 60
    x, anchor = (min(start, end) + 8, "start") if left else (max(start, end) - 8, "end")
    if start == end:
        x, anchor = start + 46, "end"
    yield text(x, y - 22, f"{number}. {step.label}", _TEXT, "halo name", anchor)
    yield text(x, y - 7, step.file, _SMALL, "halo file", anchor)
    if start == end:
        return
    tip = 7 if end > start else -7
    yield f'<path class="arrow" d="M{start:g} {y:g}H{end - tip:g}"/>'
    yield f'<path class="head" d="M{end:g} {y:g}l{-1.4 * tip:g} -5v10z"/>'


def main() -> None:
    folder = Path(__file__).parent
    (folder / "house.svg").write_text(house(), "utf-8")
    (folder / "job.svg").write_text(job(), "utf-8")


if __name__ == "__main__":
    main()
