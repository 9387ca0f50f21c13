"""The form of a segment, a file with the payloads of one group commit: its head, and the names that records have of them. Pure.

The head fills whole pages at the start of the file, and each payload begins on a page of its own.
"""

# D67: docs/design/store.md

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

PAGE = 4_096
# The states of a payload. A punched one is dead, and its room in the file has been given back to the disk.
LIVE, DEAD, PUNCHED = b"L"[0], b"D"[0], b"P"[0]
# The fate of a file without a live payload: its writer refills it, or the process that empties it deletes it.
KEPT, LEFT = b"K", b"U"
_MAGIC = b"penstk01"
# A larger value shows that the file does not begin with a head.
_LARGEST_HEAD_BYTES = 1 << 20
_FIXED = struct.Struct("<8sIIII")
MARK_AT = _FIXED.size
STATES_AT = MARK_AT + len(KEPT)
_LINE = re.compile(r"([0-9a-z]{26}\.(?:in|out)) ([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]{8})")
_REFERENCE = re.compile(
    r"([0-9a-z]{26}\.(?:in|out))@([0-9a-f]{8})\.([0-9a-f]{1,12})\.([0-9a-f]{1,8})\.([0-9a-f]{1,8})\.([0-9a-f]{8})"
)


class Piece(NamedTuple):
    """One payload of a segment. `name`: the job's serial with `.in` or `.out`. `page`: where in the file it begins."""

    name: str
    page: int
    length: int
    checksum: int

    @property
    def offset(self) -> int:
        return self.page * PAGE

    def holds(self, data: bytes) -> bool:
        """Whether `data` is this payload, whole and undamaged."""
        return len(data) == self.length and zlib.crc32(data) == self.checksum


class Reference(NamedTuple):
    """Where a payload lies: the `number`th segment of the writer `owner`. Its text is the name by which a record knows it.

    The text has at most 64 characters for a million segments of one writer, so that the record keeps its compact form (D19).
    """

    owner: str
    number: int
    piece: Piece

    @property
    def segment(self) -> str:
        return f"{self.owner}/{self.number:x}"

    def __str__(self) -> str:
        piece = self.piece
        return f"{piece.name}@{self.owner}.{self.number:x}.{piece.page:x}.{piece.length:x}.{piece.checksum:08x}"


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """`states` has one of LIVE, DEAD, PUNCHED per piece."""

    mark: bytes
    states: bytes
    pieces: tuple[Piece, ...]

    @property
    def has_live(self) -> bool:
        return LIVE in self.states

    @property
    def live(self) -> list[Piece]:
        return [piece for piece, state in zip(self.pieces, self.states, strict=True) if state == LIVE]

    @property
    def is_mostly_dead(self) -> bool:
        """Whether giving back the room of its dead pieces would free more than half of what it holds."""
        held = [(piece.length, state) for piece, state in zip(self.pieces, self.states, strict=True) if state != PUNCHED]
        return 2 * sum(length for length, state in held if state == DEAD) > sum(length for length, _ in held)

    def without(self, gone: Sequence[Piece]) -> bytes:
        """The states once these pieces are dead. A piece that is missing here was dead already, and its place was rewritten."""
        dead = set(gone)
        pairs = zip(self.pieces, self.states, strict=True)
        return bytes(DEAD if state == LIVE and piece in dead else state for piece, state in pairs)


def parse_reference(name: str) -> Reference | None:
    """None for a name of any other form."""
    match = _REFERENCE.fullmatch(name)
    if match is None:
        return None
    own, owner, number, page, length, checksum = match.groups()
    return Reference(owner, int(number, 16), Piece(own, int(page, 16), int(length, 16), int(checksum, 16)))


def lay_out(payloads: Sequence[tuple[str, bytes]]) -> tuple[Piece, ...]:
    """Where each payload of a new segment goes. `payloads`: pairs of a blob's name and its bytes."""
    pages = [-(-len(data) // PAGE) for _, data in payloads]
    # A line has the longest form that any of them may have, so that the size of the head is known before its lines are.
    first = -(-_head_bytes(len(payloads)) // PAGE)
    starts = accumulate(pages, initial=first)
    return tuple(
        Piece(_short(name), page, len(data), zlib.crc32(data)) for (name, data), page in zip(payloads, starts, strict=False)
    )


_LINE_BYTES = 60


def _head_bytes(pieces: int) -> int:
    return STATES_AT + pieces * (1 + _LINE_BYTES)


def _short(name: str) -> str:
    """Without the hash of the token: each write has a place of its own, so that two attempts never share one."""
    serial, _, tail = name.partition(".")
    return f"{serial}.{tail.rpartition('.')[2]}"


def encode_head(pieces: Sequence[Piece], *, mark: bytes) -> bytes:
    """The head of a segment whose pieces are all live, filled up to the first of them."""
    table = "\n".join(f"{p.name} {p.page:x} {p.length:x} {p.checksum:08x}" for p in pieces).encode("ascii")
    size = pieces[0].offset
    fixed = _FIXED.pack(_MAGIC, size, len(pieces), len(table), zlib.crc32(table))
    return (fixed + mark + bytes([LIVE]) * len(pieces) + table).ljust(size, b"\0")


def head_size(beginning: bytes) -> int:
    """How many bytes the head has; 0 if the file is no segment of this form."""
    if len(beginning) < _FIXED.size or not beginning.startswith(_MAGIC):
        return 0
    size: int = _FIXED.unpack_from(beginning)[1]
    return size if size <= _LARGEST_HEAD_BYTES else 0


def is_foreign(beginning: bytes) -> bool:
    """Whether the file is a segment of another version's form, which this one leaves alone."""
    return beginning.startswith(_MAGIC[:6]) and not beginning.startswith(_MAGIC)


def decode_head(data: bytes) -> SegmentHead | None:
    """None for an incomplete head: its write was cut short."""
    if len(data) < STATES_AT or head_size(data) != len(data):
        return None
    _, _, count, table_bytes, checksum = _FIXED.unpack_from(data)
    states, at = data[STATES_AT : STATES_AT + count], STATES_AT + count
    table = data[at : at + table_bytes]
    if len(table) != table_bytes or zlib.crc32(table) != checksum:
        return None
    lines = [_LINE.fullmatch(line) for line in table.decode("ascii").split("\n")]
    pieces = tuple(
        Piece(match[1], int(match[2], 16), int(match[3], 16), int(match[4], 16)) for match in lines if match is not None
    )
    return SegmentHead(data[MARK_AT:STATES_AT], states, pieces) if len(pieces) == len(states) == count else None
