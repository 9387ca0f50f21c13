"""Urlencoded forms are read as Python's library reads them, in little memory."""

from __future__ import annotations

import tracemalloc
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.extensions.torchserve import urlencoded
from penstock.extensions.torchserve.urlencoded import pairs_of

MIB = 1 << 20


@given(text=st.text("ab%4142c3+=&G\n", max_size=60), block=st.integers(3, 8))
def test_pairs_are_those_of_pythons_library_wherever_a_block_ends(text: str, block: int) -> None:
    expected = parse_qsl(text, keep_blank_values=True, encoding="latin-1")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(urlencoded, "_BLOCK_BYTES", block)
        found = pairs_of(text.encode(), 1_000)
    assert found == [(name.encode("latin-1").decode("utf-8", "replace"), value.encode("latin-1")) for name, value in expected]


def test_a_form_of_escapes_alone_takes_little_more_memory_than_it_has_bytes() -> None:
    form = b"a=" + b"%41" * MIB
    tracemalloc.start()
    try:
        found = pairs_of(form, 10)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [("a", b"A" * MIB)]
    assert most < 20 * MIB


def test_a_flood_of_fields_is_refused_unread() -> None:
    assert len(pairs_of(b"a=1&" * 9 + b"a=1", 10)) == 10
    with pytest.raises(ValueError, match="more than 10 fields"):
        pairs_of(b"a=1&" * 10 + b"a=1", 10)
