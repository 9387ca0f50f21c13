"""The steps of an answer-now request on an idle system, and what each took, from the stamps. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.experiments.lone_path.stamping import CALL, RETURN, Mark

CLIENT, GATEWAY, STORE, SUPERVISOR, CHILD, HOP = "client", "gateway", "store", "supervisor", "child", "hop"
_ASGI, _STORE, _WIRE = "penstock.gateway.asgi", "penstock.broker.store", "penstock.workers.ipc.wire"
_SLOT, _CHILD = "penstock.workers.slot", "penstock.workers.child.threads"
# Functions of libraries: a thread sends to the store, and bytes reach an event loop.
_SENT = ("redis.connection:AbstractConnection.send_packed_command", CALL)
_FED = ("asyncio.streams:StreamReader.feed_data", CALL)


class PathStep(NamedTuple):
    """From the end of the step before to the `nth` stamp of `ends` behind it; None: the client has the answer.

    A hop begins before the system call that sends, and ends where code of the receiver runs: what wakes it is in the hop.
    `functions`: those that the store runs meanwhile.
    """

    where: str
    what: str
    ends: Mark | None
    nth: int = 1
    functions: tuple[str, ...] = ()


STEPS = (
    PathStep(HOP, "the request reaches the gateway", (f"{_ASGI}.connection:GuardedProtocol.data_received", CALL)),
    PathStep(GATEWAY, "parse, check and admit it", (f"{_STORE}.aio:AsyncStore.submit", CALL)),
    PathStep(GATEWAY, "gather the group commit, encode the submit", (f"{_STORE}.connection:AsyncLink.write_now", CALL)),
    PathStep(STORE, "it reaches the store, the claim the slot", (f"{_SLOT}.claims:Claims.read_messages", CALL), 1, ("submit",)),
    PathStep(SUPERVISOR, "read the claim, make the batch", (f"{_SLOT}.claims:Claims._take", RETURN)),
    PathStep(SUPERVISOR, "tend to the slot, encode the frame", (f"{_WIRE}:SupervisorWire._push", CALL)),
    PathStep(HOP, "the frame reaches the child, and is decoded", (f"{_WIRE}:ChildWire.read", RETURN)),
    PathStep(CHILD, "read the input, preprocess", (f"{_CHILD}:DeviceQueue.put", CALL)),
    PathStep(HOP, "the reading thread wakes the main one", (f"{_CHILD}:DeviceQueue.take", RETURN)),
    PathStep(CHILD, "run the handler", (f"{_CHILD}:ChildThreads._infer", RETURN)),
    PathStep(HOP, "the outcome goes to whoever writes it", (f"{_CHILD}:ChildThreads._completed", CALL)),
    PathStep(CHILD, "postprocess, write the output", (f"{_WIRE}:ChildWire.write", CALL)),
    PathStep(HOP, "the frame reaches the supervisor", (f"{_SLOT}.child.manager:ChildManager.handle", CALL)),
    PathStep(SUPERVISOR, "decode it, decide what follows", (f"{_SLOT}.settlement:Settlements._finish_all", CALL)),
    PathStep(SUPERVISOR, "encode finish and claim", _SENT),
    PathStep(STORE, "they reach the store, the push the gateway", _FED, 1, ("finish", "claim")),
    PathStep(GATEWAY, "read and decode the push", (f"{_STORE}.notifications:PushRouter._deliver", CALL)),
    PathStep(GATEWAY, "wake the request, make the answer", (f"{_ASGI}.wire:answer", CALL)),
    PathStep(GATEWAY, "pass it through the HTTP server", (f"{_ASGI}.connection:SingleWriteTransport.write", CALL), 2),
    PathStep(HOP, "the answer reaches the client", None),
)  # fmt: skip
MARKS = tuple(step.ends for step in STEPS if step.ends is not None)


class Asked(NamedTuple):
    """One request, in nanoseconds of the monotonic clock. `synced_us`: how long the store wrote its log meanwhile."""

    sent: int
    got: int
    synced_us: int


class StepTime(NamedTuple):
    """A step or a part of one, in microseconds."""

    where: str
    what: str
    us: float


def way(asked: Asked, stamps: Mapping[Mark, Sequence[int]], steps: Sequence[PathStep] = STEPS) -> list[int] | None:
    """The nanoseconds of each step; None if the request went another way, as one does that meets no offer of a slot."""
    taken, at = [], asked.sent
    for step in steps:
        ends = asked.got if step.ends is None else _nth(stamps[step.ends], at, step.nth)
        if ends is None or ends > asked.got:
            return None
        taken.append(ends - at)
        at = ends
    return taken


def _nth(moments: Sequence[int], since: int, nth: int) -> int | None:
    place = bisect_left(moments, since) + nth - 1
    return moments[place] if place < len(moments) else None


def rows(ways: Sequence[Sequence[int]], asked: Sequence[Asked], functions: Mapping[str, float]) -> list[StepTime]:
    """The median of each step. A step through the store is split: its functions, half of the log's time, and the rest."""
    sync_us = statistics.median(one.synced_us for one in asked) / 2
    found: list[StepTime] = []
    for step, taken in zip(STEPS, zip(*ways, strict=True), strict=True):
        us = statistics.median(taken) / 1e3
        if not step.functions:
            found.append(StepTime(step.where, step.what, us))
            continue
        parts = [StepTime(STORE, f"run `{name}`", functions[name]) for name in step.functions]
        parts.append(StepTime(STORE, "write the log and sync it", sync_us))
        rest = us - sum(part.us for part in parts)
        found += [StepTime(HOP, step.what, rest), *parts]
    return found
