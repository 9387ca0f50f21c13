"""A call through every door: an output comes back, whatever its size and its letters."""

from __future__ import annotations

from tests.doors.check import check
from tests.doors.door import Door
from tests.doors.stack import INLINE_BYTES, Stack


@check("predict")
def test_an_input_goes_in_and_its_output_comes_out(stack: Stack, door: Door) -> None:
    assert door.ask(stack.main, order={"n": 4}).n == 4.0


@check("versions")
def test_a_version_can_be_named(stack: Stack, door: Door) -> None:
    assert door.ask(stack.main, order={"ask": "version"}).n == 1.0
    assert door.ask(stack.main, order={"ask": "version"}, version="2").n == 2.0


@check("unicode")
def test_any_text_goes_through(stack: Stack, door: Door) -> None:
    text = 'Grüße, 世界 🎉 \u2028\\" \u200f'
    assert door.ask(stack.main, order={"say": text}).n == sum(map(ord, text))


@check("large_in")
def test_a_large_input_travels_beside_the_record(stack: Stack, door: Door) -> None:
    assert door.ask(stack.main, order={"n": 5, "pad": "x" * 8 * INLINE_BYTES}).n == 5.0


@check("large_out")
def test_a_large_output_travels_beside_the_record(stack: Stack, door: Door) -> None:
    reply = door.ask(stack.main, order={"n": 6, "size": 8 * INLINE_BYTES})
    assert (reply.n, reply.size > 4 * INLINE_BYTES) == (6.0, True)
