"""Stamps the moments at which named functions are called or return, in every Python process that starts with the folder.

`install` writes this file as `sitecustomize.py` into a folder, and what to stamp beside it. Every interpreter that has the
folder in PYTHONPATH then stamps, and so do its children. Moments are nanoseconds of CLOCK_MONOTONIC, which all processes of a
host share. A process leaves its stamps in `PID.stamps`, written as they are made: what is killed leaves them too.
"""

from __future__ import annotations

import functools
import itertools
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

CALL, RETURN = "call", "return"
# The name of a function as module:qualified name, and which of its moments is stamped.
Mark = tuple[str, str]

_STAMP = struct.Struct("<qq")
_MOST_STAMPS = 1 << 19


class _Stamps:
    """The file of one process. `write` is called by any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.open()

    def open(self) -> None:
        """Begin a file; also in a process that was forked, which must not write into that of its parent."""
        with (self._folder / f"{os.getpid()}.stamps").open("w+b") as file:
            file.truncate(_MOST_STAMPS * _STAMP.size)
            self._page = mmap.mmap(file.fileno(), 0)
        self._next = itertools.count()

    def write(self, number: int) -> None:
        place = next(self._next)
        if place < _MOST_STAMPS:
            # From 1, because the file is full of zeros.
            _STAMP.pack_into(self._page, place * _STAMP.size, number + 1, time.monotonic_ns())


class _Finder:
    """Finds the modules that have something to stamp, and has them stamp it once they are imported."""

    def __init__(self, wanted: Mapping[str, Sequence[tuple[str, str, int]]], stamps: _Stamps) -> None:
        self._wanted = wanted
        self._stamps = stamps

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._wanted:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(self._run, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _run(self, run: Callable[[ModuleType], None], module: ModuleType) -> None:
        run(module)
        for qualified, edge, number in self._wanted[module.__name__]:
            *outer, name = qualified.split(".")
            owner = functools.reduce(getattr, outer, module)
            setattr(owner, name, _stamped(getattr(owner, name), edge, functools.partial(self._stamps.write, number)))


def _stamped(function: Callable[..., Any], edge: str, stamp: Callable[[], None]) -> Callable[..., Any]:
    def on_call(*arguments: Any, **named: Any) -> Any:
        stamp()
        return function(*arguments, **named)

    def on_return(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        stamp()
        return result

    return on_call if edge == CALL else on_return


def install(folder: Path, marks: Sequence[Mark]) -> None:
    (folder / "sitecustomize.py").write_text(Path(__file__).read_text("utf-8"))
    (folder / "marks.json").write_text(json.dumps(marks))


def read(folder: Path, marks: Sequence[Mark]) -> dict[Mark, list[int]]:
    """The moments of each mark in all processes so far, in order."""
    found: dict[Mark, list[int]] = {mark: [] for mark in marks}
    for path in folder.glob("*.stamps"):
        for number, at in _STAMP.iter_unpack(path.read_bytes()):
            if not number:
                break
            found[marks[number - 1]].append(at)
    return {mark: sorted(moments) for mark, moments in found.items()}


def _begin(folder: Path) -> None:
    wanted: dict[str, list[tuple[str, str, int]]] = {}
    for number, (place, edge) in enumerate(json.loads((folder / "marks.json").read_text())):
        module, _, qualified = place.partition(":")
        wanted.setdefault(module, []).append((qualified, edge, number))
    stamps = _Stamps(folder)
    os.register_at_fork(after_in_child=stamps.open)
    sys.meta_path.insert(0, _Finder(wanted, stamps))


if __name__ == "sitecustomize":
    _begin(Path(__file__).parent)
