from __future__ import annotations

import os

import pytest

from penstock.broker.blobs.segments import (
    DEAD,
    KEPT,
    LEFT,
    LIVE,
    PAGE,
    PUNCHED,
    Piece,
    Reference,
    SegmentHead,
    decode_head,
    encode_head,
    head_size,
    is_foreign,
    lay_out,
    parse_reference,
)
from penstock.job import new_serial


def payloads(*sizes: int) -> list[tuple[str, bytes]]:
    return [(f"{new_serial()}.in", os.urandom(size)) for size in sizes]


def test_each_payload_begins_on_a_page_of_its_own_behind_the_head() -> None:
    pieces = lay_out(payloads(1, 4_096, 4_097, 10))
    assert [piece.page for piece in pieces] == [1, 2, 3, 5]
    assert len(encode_head(pieces, mark=KEPT)) == pieces[0].offset


@pytest.mark.parametrize("count", [1, 64, 1_000])
def test_a_head_is_read_as_it_was_written(count: int) -> None:
    pieces = lay_out(payloads(*[2_000_000] * count)) if count < 1_000 else lay_out(payloads(*range(count)))
    head = encode_head(pieces, mark=LEFT)
    assert head_size(head[:PAGE]) == len(head)
    assert decode_head(head) == SegmentHead(LEFT, bytes([LIVE]) * count, pieces)


def test_a_head_that_was_cut_short_or_damaged_is_none() -> None:
    head = encode_head(lay_out(payloads(10, 20)), mark=KEPT)
    assert [decode_head(head[:size]) for size in (0, 8, 24, 30, 100, len(head) - 1)] == [None] * 6
    damaged = bytearray(head)
    damaged[40] ^= 1
    assert decode_head(bytes(damaged)) is None
    assert decode_head(bytes(len(head))) is None


def test_a_head_of_another_version_is_told_from_a_torn_one() -> None:
    assert is_foreign(b"penstk02" + bytes(100))
    assert not is_foreign(encode_head(lay_out(payloads(1)), mark=KEPT))
    assert not is_foreign(bytes(100))


def test_a_reference_is_read_as_it_is_written_and_fits_a_compact_record() -> None:
    [piece] = lay_out([(f"{new_serial()}.9f86d081.out", b"x")])
    largest = Reference("ffffffff", 0xFFFFF, Piece(piece.name.replace("out", "in"), 0xFFF, 0x200000, 0xFFFFFFFF))
    for reference in (Reference("0a1b2c3d", 0, piece), largest):
        assert parse_reference(str(reference)) == reference
    # Redis' listpacks take values of up to 64 bytes.
    assert len(str(largest)) <= 64
    assert parse_reference(f"{new_serial()}.in") is None


def test_a_segment_is_mostly_dead_while_punching_would_free_more_than_half() -> None:
    pieces = lay_out(payloads(100, 100, 100, 100))
    states = [[LIVE] * 4, [DEAD, DEAD, LIVE, LIVE], [DEAD, DEAD, DEAD, LIVE], [PUNCHED, PUNCHED, DEAD, LIVE]]
    heads = [SegmentHead(LEFT, bytes(each), pieces) for each in states]
    assert [head.is_mostly_dead for head in heads] == [False, False, True, False]


def test_only_the_pieces_that_are_meant_die_even_where_another_has_their_place() -> None:
    old, new = lay_out(payloads(100, 100)), lay_out(payloads(100, 100))
    head = SegmentHead(KEPT, bytes([LIVE, LIVE]), new)
    assert head.without(old) == head.states
    assert head.without([new[1]]) == bytes([LIVE, DEAD])
    assert SegmentHead(KEPT, bytes([PUNCHED, LIVE]), new).without(new) == bytes([PUNCHED, DEAD])
