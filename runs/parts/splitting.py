"""Cuts an input into parts: finds where its files can be cut, and lets `stretches` choose."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from penstock.errors import NotFound
from penstock.run import RunPart
from penstock.runs import files
from penstock.runs.parts.stretches import InputStretch, cut_file, cuts_in_files, deal, parts_of
from penstock.runs.sources.folder import FolderSource
from penstock.runs.sources.opening import FileSource
from penstock.runs.sources.parquet import ParquetFile
from penstock.runs.sources.row_files import FilesSource
from penstock.runs.sources.table_text import DelimitedTable

_BLOCK_BYTES = 8 << 20


def split_input(source: FileSource, parts: int) -> list[RunPart]:
    """At most `parts` parts of the input, at least one. It reads files that are cut up to their last cut."""
    cut = parts_of(deal(_stretches(source, parts), parts), listing=listing_of(source), host=os.uname().nodename)
    return [replace(part, identity=identity_of(source.of_part(part))) for part in cut]


def listing_of(source: FileSource) -> str:
    """Equal for the same files in the same order."""
    return hashlib.sha256("\0".join(source.names).encode("utf-8", "surrogateescape")).hexdigest()


def identity_of(source: FileSource) -> str:
    """Equal while the files of a part are unchanged."""
    return hashlib.sha256(msgspec.json.encode(source.identity(), order="deterministic")).hexdigest()


def _stretches(source: FileSource, parts: int) -> list[InputStretch]:
    if isinstance(source, FolderSource):
        return [InputStretch(number, _size_of(name), rows=1) for number, name in enumerate(source.names)]
    file = source.open_file(source.names[0], None)
    file.close()
    if isinstance(file, ParquetFile):
        return [stretch for number in range(len(source.names)) for stretch in _row_groups(source, number)]
    return list(_line_stretches(source, parts, has_quotes=isinstance(file, DelimitedTable)))


def _size_of(name: str) -> int:
    try:
        return files.stat(name).size_bytes
    except NotFound:
        # The row of this file will fail, as in a run of one part.
        return 0


def _row_groups(source: FilesSource, number: int) -> Iterator[InputStretch]:
    file = source.open_file(source.names[number], None)
    assert isinstance(file, ParquetFile)
    try:
        groups = file.groups()
    finally:
        file.close()
    if not groups:
        yield InputStretch(number, 0, rows=0)
    for group, (rows, size_bytes) in enumerate(groups):
        yield InputStretch(number, size_bytes, rows, begin={"group": group, "offset": 0}, end=group + 1)


def _line_stretches(source: FilesSource, parts: int, *, has_quotes: bool) -> Iterator[InputStretch]:
    sizes = [files.stat(name).size_bytes for name in source.names]
    wanted = cuts_in_files(sizes, parts)
    for number, (name, size) in enumerate(zip(source.names, sizes, strict=True)):
        # A gzipped file can only be read from its beginning.
        offsets = [] if name.endswith(".gz") else wanted.get(number, [])
        cuts = line_ends(_blocks_of(name), offsets, before_quote=has_quotes) if offsets else []
        inside = [(offset, {"offset": offset, "line": line}) for offset, line in cuts if offset < size]
        yield from cut_file(number, size, inside)


def _blocks_of(name: str) -> Iterator[bytes]:
    with files.open_read(name) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def line_ends(blocks: Iterable[bytes], offsets: Sequence[int], *, before_quote: bool) -> list[tuple[int, int]]:
    """The offsets behind the first line that ends at or behind each of `offsets` (ascending), each once, with the number of
    lines before it. No line ends: no offset.

    `before_quote`: only those before the first quotation mark, because after it a line may end within a record.
    """
    ends: list[tuple[int, int]] = []
    start = lines = 0
    wanted = iter(offsets)
    target = next(wanted, None)
    for block in blocks:
        quote = block.find(b'"') if before_quote else -1
        usable = block if quote < 0 else block[:quote]
        counted = 0
        while target is not None and (end := usable.find(b"\n", max(counted, target - 1 - start))) >= 0:
            lines += usable.count(b"\n", counted, end + 1)
            counted = end + 1
            ends.append((start + counted, lines))
            target = next((offset for offset in wanted if offset > start + counted), None)
        if target is None or quote >= 0:
            break
        lines += block.count(b"\n", counted)
        start += len(block)
    return ends
