"""The ordinary jobs that wait in the memory store. They are sorted as they come, because the simulator claims from, and asks at
every arrival for its place among, thousands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from operator import itemgetter

from penstock.broker.memory.record import Record

_deadline_of = itemgetter(0)


class WaitingLines:
    """One line per version, owner and band, by deadline and then by serial. Iterates over the serials, line after line."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str, int], list[tuple[float, str]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (serial for line in self._lines.values() for _, serial in line)

    def add(self, record: Record) -> None:
        """The record's band must stay as it is until `discard`."""
        insort(self._lines.setdefault(_line_of(record), []), _place_of(record))
        self._count += 1

    def discard(self, record: Record) -> None:
        line = self._lines.get(_line_of(record), [])
        place = bisect_left(line, _place_of(record))
        if line[place : place + 1] == [_place_of(record)]:
            del line[place]
            self._count -= 1

    def holds(self, record: Record) -> bool:
        line = self._lines.get(_line_of(record), [])
        place = bisect_left(line, _place_of(record))
        return line[place : place + 1] == [_place_of(record)]

    def line(self, version: str, owner: str, band: int) -> list[str]:
        """The serials of one owner in one band, in order."""
        return [serial for _, serial in self._lines.get((version, owner, band), ())]

    def count(self, version: str) -> int:
        return sum(len(line) for (of, _, _), line in self._lines.items() if of == version)

    def count_without_owner(self, version: str) -> int:
        return sum(len(line) for (of, owner, _), line in self._lines.items() if (of, owner) == (version, ""))

    def has_any_of(self, band: int) -> bool:
        return any(line for (_, _, of), line in self._lines.items() if of == band)

    def position(self, record: Record) -> int:
        """How many jobs of its owner stand before this one."""
        line = self._lines.get(_line_of(record), [])
        return self._in_lower_bands(record) + bisect_left(line, _place_of(record))

    def ahead_of(self, record: Record) -> int:
        """How many jobs of its owner would stand before a record that does not wait yet."""
        line = self._lines.get(_line_of(record), [])
        return self._in_lower_bands(record) + bisect_right(line, record.deadline_at, key=_deadline_of)

    def _in_lower_bands(self, record: Record) -> int:
        version, owner, band = _line_of(record)
        keys = ((of, by, lower) for of, by, lower in self._lines if (of, by) == (version, owner) and lower < band)
        return sum(len(self._lines[key]) for key in keys)


def _line_of(record: Record) -> tuple[str, str, int]:
    return record.new.version, record.new.owner, record.band


def _place_of(record: Record) -> tuple[float, str]:
    return record.deadline_at, record.serial
