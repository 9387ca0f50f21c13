"""W3C trace context: the trace that a job belongs to, as headers, records and log lines write it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A longer tracestate is dropped; the standard asks to pass on at least this much.
MAX_STATE_CHARS = 512
MAX_STATE_MEMBERS = 32
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """`trace_id` is 32, `span_id` 16 lower-case hexadecimal digits; `state` is the tracestate, empty without one."""

    trace_id: str
    span_id: str
    flags: int = _SAMPLED
    state: str = ""

    @property
    def parent(self) -> str:
        """As the header `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def text(self) -> str:
        """As it stands in a record; `stored` reads it."""
        return f"{self.parent} {self.state}" if self.state else self.parent


def read(parent: str, state: str = "") -> TraceContext | None:
    """The context in the two headers; None for an unreadable traceparent, which the standard says to ignore, not to refuse."""
    match = _PARENT.fullmatch(parent.strip())
    # Version 00 has no more fields; the fields that a later version adds are ignored.
    if match is None or (match[1] == "00" and match[5]):
        return None
    return TraceContext(match[2], match[3], int(match[4], 16) & _SAMPLED, _state(state))


def stored(text: str) -> TraceContext | None:
    """The context that `text` kept; None for an empty one."""
    parent, _, state = text.partition(" ")
    return read(parent, state)


def trace_id_of(text: str) -> str:
    """The trace id of a stored context, without parsing the rest; empty if there is none."""
    return text[3:35]


def _state(text: str) -> str:
    members = [member.strip() for member in text.split(",") if member.strip()]
    tidy = ",".join(members)
    good = len(members) <= MAX_STATE_MEMBERS and len(tidy) <= MAX_STATE_CHARS and all(map(_MEMBER.fullmatch, members))
    # All or nothing: half a tracestate would be another system's data, damaged.
    return tidy if good else ""
