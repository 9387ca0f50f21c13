"""The audit log: the newest acts of operators, in a hash of the store that workers cannot access."""

# D119: docs/design/gateway.md
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from penstock.broker.store.ops import Operation
from penstock.broker.store.registry import KEYS_PREFIX

# Of keys with the role `manage`, and as many of all others: together about 10 MB in the store.
MOST_ACTS = 10_000
# As `read_acts` in `audit.lua` has it.
MOST_READ = 200


@dataclass(frozen=True, slots=True)
class Act:
    """One act: `by` is the id of the key, `on` what it was done to by kind (`model`, `version`, `worker`, `key`, ...), `said`
    what was asked for. `at` is Unix seconds by the store's clock. `outcome`: empty until it is known. `owner`: whose share of
    the log the act takes; empty for a key with the role `manage`, and for acts that were read.
    """

    act: str
    by: str = ""
    address: str = ""
    on: dict[str, str] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    at: float = 0.0
    outcome: str = ""
    owner: str = ""


_ACT = msgspec.json.Decoder(Act)


def note_act(act: Act) -> Operation[int]:
    """The number of the act."""
    return Operation("note_act", KEYS_PREFIX, [_text(act), act.owner, MOST_ACTS], int)


def end_act(number: int, act: Act, outcome: str) -> Operation[bool]:
    """An act that changed nothing has no outcome, and is forgotten. False if the act was forgotten meanwhile."""
    return Operation("end_act", KEYS_PREFIX, [number, act.owner, outcome, _text(act)], bool)


def read_acts(*, before: int | None = None, limit: int = MOST_READ) -> Operation[list[Act]]:
    """The newest first."""
    return Operation("read_acts", KEYS_PREFIX, ["" if before is None else before, limit], _acts)


def _text(act: Act) -> bytes:
    named: Mapping[str, Any] = {"act": act.act, "by": act.by, "address": act.address, "on": act.on, "said": act.said}
    return msgspec.json.encode({name: value for name, value in named.items() if value})


def _acts(reply: Sequence[Any]) -> list[Act]:
    return [_act(int(number), text) for number, text in zip(reply[::2], reply[1::2], strict=True)]


def _act(number: int, text: bytes) -> Act:
    at, outcome, act = text.split(b"\n", 2)
    return replace(_ACT.decode(act), number=number, at=int(at) / 1000, outcome=outcome.decode())
