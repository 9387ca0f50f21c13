"""Outputs that are too large to send: each fails its own item with an error that has its size, and never ends the child.

Pure. Short of memory, msgspec raises `MemoryError` if it writes into a `bytearray`, and ends the process if it makes `bytes`.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.errors import HandlerContractError
from penstock.handlers.media import too_large
from penstock.workers.ipc.frames import (
    BatchDone,
    Failed,
    FromChild,
    Outcome,
    Output,
    ShardDone,
)
from penstock.workers.ipc.wire import FRAME_LIMIT_BYTES

# What a frame holds beside the outputs: a few numbers, and per item a media type and a length.
_SLACK_BYTES = 1 << 20
MOST_BYTES = FRAME_LIMIT_BYTES - _SLACK_BYTES


def bounded(outcomes: list[Outcome], most: int = MOST_BYTES) -> list[Outcome]:
    """The outcomes of a batch, whose outputs together have at most `most` bytes: the largest of them fail if they must."""
    total = sum(map(output_bytes, outcomes))
    kept = list(outcomes)
    for place in sorted(range(len(kept)), key=lambda place: output_bytes(kept[place]), reverse=True):
        if total > most:
            size = output_bytes(kept[place])
            total -= size
            why = f"{too_large(size, most)} for the {len(kept)} outputs of a batch together"
            kept[place] = Failed(HandlerContractError.kind, why)
    return kept


def output_bytes(outcome: Outcome) -> int:
    return len(outcome.data) if isinstance(outcome, Output) else 0


def unsent(frame: FromChild) -> FromChild:
    """The frame to send where there is no memory to write this one: its outputs have failed, everything else stays."""
    match frame:
        case BatchDone():
            return _without_outputs(frame)
        case ShardDone():
            return replace(frame, done=_without_outputs(frame.done))
    return frame


def _without_outputs(done: BatchDone) -> BatchDone:
    total = sum(map(output_bytes, done.outcomes))
    return replace(done, outcomes=[_unsendable(outcome, total) for outcome in done.outcomes])


def _unsendable(outcome: Outcome, total: int) -> Outcome:
    if isinstance(outcome, Failed):
        return outcome
    size = output_bytes(outcome)
    why = f"output too large: {size} bytes, in a batch of {total}, do not fit into the memory of the model's process"
    return Failed(HandlerContractError.kind, why)
