"""What a process that writes segments leaves if it is killed at any line. test_segments.py runs it in a small process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.broker.blobs import segment_files, segment_writer
from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.blobs.segment_files import TORN_S
from penstock.job import new_serial

TRACED = {segment_files.__file__, segment_writer.__file__}


def die_at_each_line(folder: Path) -> int:
    """The number of lines at which a process was killed. Fails at a line that loses a payload or leaves one for ever."""
    line = 0
    while _is_killed_at(line, folder / str(line)):
        line += 1
    return line


def _is_killed_at(line: int, folder: Path) -> bool:
    killed, stored, deleting = _killed_at(line, folder)
    blobs = LocalBlobs(folder, segments=True)
    kept = stored - deleting
    assert {name for name in kept if _is_there(blobs, name)} == kept, line
    _grow_old(folder)
    orphans = {name for name, age_s in blobs.names() if age_s > TORN_S} - kept
    blobs.delete_all(sorted(orphans))
    assert _names(blobs) == kept, line
    blobs.delete_all(sorted(kept))
    _grow_old(folder)
    assert (_names(blobs), _files(folder)) == (set(), []), line
    return killed


def _story(blobs: LocalBlobs, report: Callable[[str, list[str]], None]) -> None:
    """Appends and deletes so that files are made, filled again, given up, punched and deleted."""
    first = blobs.append_all(_payloads(3, 5_000))
    report("stored", first)
    report("deleting", first[:2])
    blobs.delete_all(first[:2])
    second = blobs.append_all(_payloads(2, 5_000))
    report("stored", second)
    report("deleting", second)
    blobs.delete_all(second)
    report("stored", blobs.append_all(_payloads(2, 9_000)))
    report("deleting", first[2:])
    blobs.delete_all(first[2:])
    list(blobs.names())


def _is_there(blobs: LocalBlobs, name: str) -> bool:
    return len(blobs.get(name)) > 0


def _grow_old(folder: Path) -> None:
    old = time.time() - 2 * TORN_S
    for path in sorted((folder / "segments").rglob("*"), reverse=True):
        os.utime(path, (old, old))


def _killed_at(line: int, folder: Path) -> tuple[bool, set[str], set[str]]:
    """Runs the story in a process that dies at this line of the segments' code: whether it did, and what it had reported."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            _die_at(line)
            _story(LocalBlobs(folder, segments=True), lambda what, whose: _write(writer, what, whose))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        reported = [report.split() for report in file]
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or not os.WEXITSTATUS(status)
    stored = {name for what, *whose in reported if what == "stored" for name in whose}
    return os.WIFSIGNALED(status), stored, {name for what, *whose in reported if what == "deleting" for name in whose}


def _write(descriptor: int, what: str, whose: list[str]) -> None:
    os.write(descriptor, " ".join([what, *whose, "\n"]).encode())


def _die_at(line: int) -> None:
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        return trace

    sys.settrace(trace)


def _payloads(count: int, size: int) -> list[tuple[str, bytes]]:
    return [(f"{new_serial()}.in", os.urandom(size)) for _ in range(count)]


def _names(blobs: LocalBlobs) -> set[str]:
    return {name for name, _ in blobs.names()}


def _files(folder: Path) -> list[Path]:
    return [path for path in (folder / "segments").rglob("*") if path.is_file() and path.name != "lock"]


if __name__ == "__main__":
    # Few lines, so that segments are given up within the story.
    segment_writer.KEPT_SEGMENTS = 1
    print(die_at_each_line(Path(sys.argv[1])))
