"""The link of one thread to a cluster: each call goes to the node that serves its key."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import redis

from penstock.broker.store.links.nodes import any_client, found_client, node_pool, seeds_of
from penstock.broker.store.links.refusals import AWAY, is_lacking, not_loaded
from penstock.broker.store.links.thread_link import ThreadLink
from penstock.broker.store.links.topology import (
    PATIENCE_S,
    PAUSE_S,
    UNTAKEN,
    ClusterTopology,
    ClusterView,
    Node,
    guarded,
    key_of,
    parse_topology,
)
from penstock.settings.store_url import StoreAddress, parse_store_url


class ThreadNodes:
    """The nodes of a cluster as one thread knows them, and its links to them. `options`: those of each connection."""

    def __init__(self, address: StoreAddress, options: dict[str, Any]) -> None:
        self._address, self._options = address, options
        self._links: dict[Node, ThreadLink] = {}
        self.view = ClusterView()

    def topology(self) -> ClusterTopology:
        """Asks for it if that is due. Raises what the last node raised if none answers."""
        if self.view.is_due(time.monotonic()):
            self.view.learn(self._ask(), time.monotonic())
        assert self.view.topology is not None
        return self.view.topology

    def _ask(self) -> ClusterTopology:
        known = list(dict.fromkeys([*self._links, *seeds_of(self._address)]))
        failure: Exception = redis.ConnectionError("no node of the cluster is known")
        for node in random.sample(known, len(known)):
            try:
                [reply] = self.link(node).answers([("CLUSTER", "SLOTS")])
            except (*AWAY, redis.ResponseError) as error:
                failure = error if isinstance(error, AWAY) else redis.ConnectionError(f"{node} names no nodes: {error}")
                continue
            topology = parse_topology(reply, node)
            self._close_others(topology)
            return topology
        raise failure

    def _close_others(self, topology: ClusterTopology) -> None:
        for node in [node for node in self._links if node not in topology.primaries]:
            self._links.pop(node).close()

    def owner(self, key: str | bytes) -> Node:
        """The node that serves the key. Raises `ConnectionError` while there is none."""
        self.topology()
        return self.view.owner(key)

    def link(self, node: Node) -> ThreadLink:
        if node not in self._links:
            self._links[node] = ThreadLink(node_pool(self._address, node, self._options))
        return self._links[node]

    def close(self) -> None:
        for link in self._links.values():
            link.close()


class ClusterThreadLink:
    """As `ThreadLink`. `source`: the library of functions, which a node that lacks it gets with the first call."""

    def __init__(self, url: str, options: dict[str, Any], source: str) -> None:
        self.nodes = ThreadNodes(parse_store_url(url), options)
        self._source = source

    def answers(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers, in order; calls to one node leave in one write.

        Raises what redis-py raises, and the first refusal once all answers are read. Only what no node took is sent again.
        """
        calls = _Calls([guarded(words) for words in commands])
        give_up_at = time.monotonic() + PATIENCE_S
        while left := calls.left():
            untaken = self._send(calls, left)
            if untaken is not None:
                if time.monotonic() >= give_up_at:
                    raise untaken
                time.sleep(PAUSE_S)
        return calls.answers()

    def together(self, key: str, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """See `ThreadLink`. Nothing is sent again."""
        node = self.nodes.owner(key)
        replies = self._replies(node, commands)
        for untaken in (reply for reply in replies if isinstance(reply, UNTAKEN)):
            self.nodes.view.on_untaken(untaken, node, time.monotonic())
        return replies

    def _send(self, calls: _Calls, left: Sequence[int]) -> Exception | None:
        """Send each of these calls once; returns why one of them was not taken, if one was not."""
        by_node: dict[Node, list[int]] = {}
        for at in left:
            by_node.setdefault(self.nodes.owner(key_of(calls.words[at])), []).append(at)
        untaken: Exception | None = None
        for node, indices in by_node.items():
            replies = self._replies(node, [calls.words[at] for at in indices])
            for at, reply in zip(indices, replies, strict=True):
                if isinstance(reply, UNTAKEN):
                    untaken = reply
                    self.nodes.view.on_untaken(reply, node, time.monotonic())
                elif not is_lacking(reply) or not self._is_loaded(node, calls):
                    calls.replies[at] = reply
        return untaken

    def _replies(self, node: Node, words: Sequence[Sequence[Any]]) -> list[Any]:
        try:
            return self.nodes.link(node).replies(words)
        except AWAY:
            self.nodes.view.forget()
            raise

    def _is_loaded(self, node: Node, calls: _Calls) -> bool:
        """Load the library on this node, once for these calls; whether that was still to be done."""
        if node in calls.loaded:
            return False
        calls.loaded.add(node)
        self._load_on(node, self._source)
        return True

    def load(self, source: str) -> None:
        """Load the library on every primary. Raises what redis-py raises, and `StoreUnavailable` for a user who may not."""
        for node in self.nodes.topology().primaries:
            self._load_on(node, source)

    def _load_on(self, node: Node, source: str) -> None:
        [reply] = self._replies(node, [("FUNCTION", "LOAD", source)])
        if isinstance(reply, redis.exceptions.NoPermissionError):
            raise not_loaded(reply)
        if isinstance(reply, Exception) and "already exists" not in str(reply):
            raise reply

    def is_unsettled(self, for_s: float) -> bool:
        """Whether a slot has changed its node within this time."""
        return time.monotonic() - self.nodes.view.changed_at < for_s

    def give_back(self) -> None:
        """Nothing is lent."""

    def close(self) -> None:
        self.nodes.close()


def cluster_client(url: str, options: dict[str, Any], key: str) -> redis.Redis:
    """A client of the node that serves the key, which is looked up at each connect; without a key, of any node."""
    address = parse_store_url(url)

    def find(_: Any) -> Node:
        nodes = ThreadNodes(address, options)
        try:
            return nodes.owner(key)
        finally:
            nodes.close()

    return found_client(address, options, find) if key else any_client(address, options)


def node_clients(url: str, options: dict[str, Any]) -> dict[str, redis.Redis]:
    """A client of each node, the primaries first. Raises what redis-py raises."""
    address = parse_store_url(url)
    nodes = ThreadNodes(address, options)
    try:
        topology = nodes.topology()
    finally:
        nodes.close()
    every = dict.fromkeys([*topology.primaries, *topology.replicas])
    return {str(node): redis.Redis.from_pool(node_pool(address, node, options)) for node in every}


class _Calls:
    """Calls that are made together. `replies`: by the index of the call; `loaded`: nodes that got the library meanwhile."""

    def __init__(self, words: Sequence[Sequence[Any]]) -> None:
        self.words = words
        self.replies: dict[int, Any] = {}
        self.loaded: set[Node] = set()

    def left(self) -> list[int]:
        return [at for at in range(len(self.words)) if at not in self.replies]

    def answers(self) -> list[Any]:
        replies = [self.replies[at] for at in range(len(self.words))]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies
