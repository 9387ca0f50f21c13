"""Which node of a cluster serves a key, as the nodes tell it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis
from redis.crc import key_slot

from penstock.broker.store.links.refusals import count_asked_again
from penstock.broker.store.registry import WORKERS_KEY

_FUNCTION_CALL = "FCALL"
# Commands that name no key go to the node that has the registry, so that all processes ask the same clock.
_KEYLESS = ("TIME", "PING", "INFO", "FUNCTION", "WAITAOF")
# The nodes are asked no more often than this which of them serves what, however many calls find a node away.
_PACE_S = 0.05
# How long and how often a call that no node took is sent again. After that its caller gets `StoreUnavailable`.
PATIENCE_S = 1.0
PAUSE_S = 0.02
# A node that says one of these has not carried the call out, so that even a claim may be sent again.
UNTAKEN = (
    redis.exceptions.AskError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.ReadOnlyError,
)


class Node(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterTopology:
    """`ranges`: first slot, last slot and the primary that serves them. `replicas`: all other nodes that work."""

    ranges: tuple[tuple[int, int, Node], ...]
    replicas: tuple[Node, ...] = ()

    @property
    def primaries(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(node for _, _, node in self.ranges))

    def owner(self, slot: int) -> Node | None:
        """The primary that serves the slot; None while no node does."""
        return next((node for first, last, node in self.ranges if first <= slot <= last), None)

    def moved(self, slot: int, node: Node) -> ClusterTopology:
        """The same, where this node serves the slot."""
        return ClusterTopology(((slot, slot, node), *self.ranges), self.replicas)


class ClusterView:
    """The topology as a client knows it, and when the nodes are to be asked for it. Moments are monotonic, in seconds."""

    def __init__(self) -> None:
        self.topology: ClusterTopology | None = None
        self.changed_at = float("-inf")
        self._asked_at = float("-inf")
        self._stale = False

    def is_due(self, now: float) -> bool:
        return self.topology is None or (self._stale and now - self._asked_at > _PACE_S)

    def learn(self, topology: ClusterTopology, now: float) -> None:
        if self.topology is not None and topology != self.topology:
            self.changed_at = now
        self.topology, self._asked_at, self._stale = topology, now, False

    def forget(self) -> None:
        """A node is away, or its role has changed."""
        self._stale = True

    def on_untaken(self, reply: Exception, asked: Node, now: float) -> None:
        """The asked node did not take a call, and may have said who serves the slot now."""
        count_asked_again(reply)
        if isinstance(reply, redis.exceptions.MovedError) and self.topology is not None:
            self.topology = self.topology.moved(reply.slot_id, Node(reply.host or asked.host, reply.port))
            self.changed_at = now
        if not isinstance(reply, redis.exceptions.TryAgainError):
            self.forget()

    def owner(self, key: str | bytes) -> Node:
        """The node that serves the key. Raises `ConnectionError` while there is none."""
        node = self.topology.owner(slot_of(key)) if self.topology is not None else None
        if node is None:
            self.forget()
            raise redis.ConnectionError("no node of the cluster serves this key at the moment")
        return node


def parse_topology(reply: Sequence[Any], asked: Node) -> ClusterTopology:
    """From the reply to CLUSTER SLOTS. A node that does not know its own name has that under which it was asked."""
    ranges, replicas = [], []
    for first, last, primary, *others in reply:
        ranges.append((int(first), int(last), _node(primary, asked)))
        replicas += [_node(other, asked) for other in others]
    return ClusterTopology(tuple(ranges), tuple(dict.fromkeys(replicas)))


def _node(entry: Sequence[Any], asked: Node) -> Node:
    host = entry[0].decode() if entry[0] else ""
    return Node(asked.host if host in ("", "?") else host, int(entry[1]))


def slot_of(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


def key_of(words: Sequence[Any]) -> str | bytes:
    """The key that decides where a command of ours goes; all its keys lie in one slot."""
    if words[0] == _FUNCTION_CALL:
        return words[3]  # type: ignore[no-any-return]
    return WORKERS_KEY if words[0] in _KEYLESS else words[1]


def beside(name: str, key: str | bytes) -> str:
    """A key of ours of this name in the slot of `key`."""
    text = key.decode() if isinstance(key, bytes) else key
    tag = text.partition("{")[2].partition("}")[0] or text
    return f"ps:{name}:{{{tag}}}"


def guarded(words: Sequence[Any]) -> Sequence[Any]:
    """The call of a function with a second key beside its own, which never exists.

    While a slot moves key by key, a node has calls that name several keys, of which some are missing, try again. Without this,
    a function would run where a part of its keys is not yet, or no longer.
    """
    if words[0] != _FUNCTION_CALL:
        return words
    return (*words[:2], 2, words[3], beside("absent", words[3]), *words[4:])
