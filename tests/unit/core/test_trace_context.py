from __future__ import annotations

import pytest

from penstock.trace_context import MAX_STATE_CHARS, read, stored, trace_id_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_good_traceparent_is_read_and_written_back() -> None:
    found = read(PARENT)
    assert found is not None
    assert (found.trace_id, found.span_id, found.flags, found.parent) == (TRACE, SPAN, 1, PARENT)
    assert trace_id_of(found.text) == TRACE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        PARENT.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{PARENT}-more",
        f"00-{TRACE}-{SPAN}",
        f"{PARENT}\nx",
        f"00-{TRACE[:-1]}\u0660-{SPAN}-01",
    ],
)
def test_an_unreadable_traceparent_is_ignored(text: str) -> None:
    assert read(text) is None


def test_what_a_later_version_adds_is_not_passed_on() -> None:
    found = read(f"01-{TRACE}-{SPAN}-03-more")
    assert found is not None
    assert found.parent == PARENT


def test_a_tracestate_is_kept_behind_the_parent() -> None:
    found = read(PARENT, " a=1 , b@c=x y ")
    assert found is not None
    assert found.state == "a=1,b@c=x y"
    assert stored(found.text) == found


@pytest.mark.parametrize(
    "state",
    ["a", "A=1", "a=1,=2", "a=\u00e9", "a=1;\x00", "a=" + "x" * MAX_STATE_CHARS, ",".join(f"k{n}=1" for n in range(33))],
)
def test_a_bad_or_long_tracestate_is_dropped_whole_and_the_trace_kept(state: str) -> None:
    found = read(PARENT, state)
    assert found is not None
    assert found.state == ""


def test_nothing_stored_is_no_trace() -> None:
    assert stored("") is None
    assert trace_id_of("") == ""
