"""The protocol version of what processes keep in the store for each other, and this process's membership.

D144: docs/design/store.md
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Sequence
from functools import partial

from penstock.broker.store.ops import Operation, ms
from penstock.errors import StoreUnavailable

# PROTOCOL rises with each form of a key, record or message that the tree before does not read. OLDEST: the oldest version that
# reads all that this tree writes, and writes only what this tree reads.
PROTOCOL, OLDEST = 1, 1
MEMBERS_KEY = "ps:{registry}:members"
# A call renews the membership after this; without a renewal it ends after `TTL_S`.
RENEW_S, TTL_S = 1.0, 5.0


class NotAdmitted(StoreUnavailable):
    """A process serves the store beside which this one cannot serve it."""


def join(member: str, protocol: int, oldest: int, *, ttl_s: float = TTL_S) -> Operation[None]:
    """Make the process a member, or renew it. Decoding the reply raises `NotAdmitted` beside one that does not fit."""
    return Operation("join", MEMBERS_KEY, [member, ms(ttl_s), protocol, oldest], partial(_check, protocol, oldest))


def _check(protocol: int, oldest: int, misfit: Sequence[bytes]) -> None:
    if misfit:
        name, other, since = (part.decode() for part in misfit)
        has = f"has version {other} and serves beside {since} and later" if other != "0" else "announces none"
        raise NotAdmitted(
            f"this process has protocol version {protocol} and serves beside {oldest} and later; {name} {has}",
            hint="stop all processes of the one version of penstock, then start those of the other",
        )


class Membership:
    """That of one process. Its stores renew it before a call from `renew_at` on, a monotonic moment; without `enter` never."""

    name, renew_at = "", math.inf

    def enter(self, kind: str) -> None:
        """`kind` says to people what the process is."""
        self.name, self.renew_at = f"{kind} {os.uname().nodename}:{os.getpid()}:{secrets.token_hex(3)}", 0.0

    def renewal(self) -> Operation[None]:
        return join(self.name, PROTOCOL, OLDEST)

    def on_renewed(self) -> None:
        self.renew_at = time.monotonic() + RENEW_S


# Each process has one store.
membership = Membership()
