"""Assigns stretches of the input to the parts of a run. Pure: sizes of files are passed in.

A part holds whole rows that follow one another, so the outputs of the parts in their order are the output of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.run import RunPart

# The cost of a file beyond its bytes, so that many small files are also dealt out evenly.
_FILE_BYTES = 4_096
# A file is cut only if it is larger than this share of a part; else a part ends between two files.
_LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class InputStretch:
    """Whole rows of file number `file` that stay together. `begin` and `end` as in `RunPart`; `rows` None: unknown."""

    file: int
    size_bytes: int
    rows: int | None = None
    begin: dict[str, int] | None = None
    end: int | None = None


def cuts_in_files(sizes: Sequence[int], parts: int) -> dict[int, list[int]]:
    """The best offsets, by file, to cut files of these sizes into equal parts. Files that stay whole are left out."""
    total = sum(sizes)
    cuts: dict[int, list[int]] = {}
    ideal, before = [total * number // parts for number in range(1, parts)], 0
    for file, size in enumerate(sizes):
        inside = [offset - before for offset in ideal if before < offset < before + size]
        if inside and size > _LEAST_SHARE * total / parts:
            cuts[file] = inside
        before += size
    return cuts


def cut_file(file: int, size_bytes: int, cuts: Sequence[tuple[int, dict[str, int]]]) -> list[InputStretch]:
    """The stretches of a file that is cut at these offsets, each with the position there."""
    stretches, before, begin = [], 0, None
    for offset, position in cuts:
        stretches.append(InputStretch(file, offset - before, begin=begin, end=offset))
        before, begin = offset, position
    return [*stretches, InputStretch(file, size_bytes - before, begin=begin)]


def deal(stretches: Sequence[InputStretch], parts: int) -> list[list[InputStretch]]:
    """At most `parts` groups of about the same size, in the order of the stretches; no group is empty."""
    weights = [stretch.size_bytes + _FILE_BYTES for stretch in stretches]
    total, before = sum(weights), 0
    groups: dict[int, list[InputStretch]] = {}
    for stretch, weight in zip(stretches, weights, strict=True):
        groups.setdefault((2 * before + weight) * parts // (2 * total), []).append(stretch)
        before += weight
    return list(groups.values())


def parts_of(groups: Sequence[Sequence[InputStretch]], *, listing: str, host: str) -> list[RunPart]:
    return [_part_of(number, group, listing, host) for number, group in enumerate(groups)]


def _part_of(number: int, group: Sequence[InputStretch], listing: str, host: str) -> RunPart:
    first, last = group[0], group[-1]
    rows = [stretch.rows for stretch in group if stretch.rows is not None]
    return RunPart(
        number=number,
        first=first.file,
        stop=last.file + 1,
        begin=first.begin,
        end=last.end,
        rows=sum(rows) if len(rows) == len(group) else None,
        listing=listing,
        host=host,
    )


def total_rows(parts: Sequence[RunPart]) -> int | None:
    """The rows of all parts; None if those of one are unknown."""
    rows = [part.rows for part in parts if part.rows is not None]
    return sum(rows) if len(rows) == len(parts) else None
