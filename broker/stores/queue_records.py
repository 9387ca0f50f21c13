"""The queues of models as the registry keeps them, and the mark that closes a queue. Pure."""

# D108: docs/design/store.md

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.broker.store.ops import Command, Operation, prefix
from penstock.model_queues import ModelQueues

QUEUES_KEY = "ps:queues"
_QUEUES = msgspec.json.Decoder(ModelQueues)


@dataclass(frozen=True, slots=True)
class StoredQueues:
    """A model's queues and their exact text in the registry, which a change must find unchanged; empty where nothing ever
    changed.
    """

    queues: ModelQueues = field(default_factory=ModelQueues)
    text: bytes = b""


def model_queues() -> Command[dict[str, StoredQueues]]:
    """By model; without those whose queues are as the settings say."""
    return Command(("HGETALL", QUEUES_KEY), _read)


def swap_queues(model: str, found: StoredQueues, wanted: ModelQueues) -> Operation[bool]:
    """Replace `found` by `wanted`; False if another process changed it first."""
    return Operation("swap", QUEUES_KEY, [model, found.text, msgspec.json.encode(wanted)], bool)


def close_queue(queue: str) -> Command[None]:
    """From now on the queue takes no new jobs. May be repeated."""
    return Command(("SET", f"{prefix(queue)}closed", "1"), _nothing)


def open_queue(queue: str) -> Command[None]:
    return Command(("DEL", f"{prefix(queue)}closed"), _nothing)


def has_jobs(queue: str) -> Command[bool]:
    """Whether any job of the queue is known, also an ended one."""
    return Command(("ZCARD", f"{prefix(queue)}index"), bool)


def _read(entries: Mapping[bytes, bytes]) -> dict[str, StoredQueues]:
    return {model.decode(): StoredQueues(_QUEUES.decode(text), text) for model, text in entries.items()}


def _nothing(_: object) -> None:
    """The reply says nothing."""
