"""The links of an event loop to a cluster: each call goes to the node that serves its key."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import redis
from redis._parsers.helpers import parse_info

from penstock.broker.store.connection import CallLink
from penstock.broker.store.links.nodes import async_node_pool, seeds_of
from penstock.broker.store.links.refusals import AWAY
from penstock.broker.store.links.replicated_link import ReplicatedLink
from penstock.broker.store.links.topology import (
    PATIENCE_S,
    PAUSE_S,
    UNTAKEN,
    ClusterTopology,
    ClusterView,
    Node,
    beside,
    guarded,
    key_of,
    parse_topology,
)
from penstock.settings.store_url import parse_store_url


class CallNodes:
    """The nodes of a cluster as one event loop knows them. `options`: those of each connection."""

    def __init__(self, url: str, options: dict[str, Any], *, within_s: float) -> None:
        self._address, self._options, self._within_s = parse_store_url(url), options, within_s
        self._asking = NodeLinks(self, replicated=False)
        self._refreshing: asyncio.Task[None] | None = None
        self.view = ClusterView()

    async def topology(self) -> ClusterTopology:
        """Asks for it if that is due, once for all callers. Raises what the last node raised if none answers."""
        if self.view.is_due(time.monotonic()):
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            await asyncio.shield(self._refreshing)
        assert self.view.topology is not None
        return self.view.topology

    async def _refresh(self) -> None:
        known = list(dict.fromkeys([*self._asking.nodes, *seeds_of(self._address)]))
        failure: Exception = redis.ConnectionError("no node of the cluster is known")
        for node in random.sample(known, len(known)):
            try:
                reply = await self._asking.link(node).answer(("CLUSTER", "SLOTS"))
            except (*AWAY, redis.ResponseError) as error:
                failure = error if isinstance(error, AWAY) else redis.ConnectionError(f"{node} names no nodes: {error}")
                continue
            topology = parse_topology(reply, node)
            self._asking.keep({*topology.primaries, *topology.replicas})
            return self.view.learn(topology, time.monotonic())
        raise failure

    async def owner(self, key: str | bytes) -> Node:
        """The node that serves the key. Raises `ConnectionError` while there is none."""
        await self.topology()
        return self.view.owner(key)

    async def everywhere(self, words: Sequence[Any]) -> dict[Node, Any]:
        """The answers of all primaries to this command; an answer that is an error is not raised."""
        nodes = (await self.topology()).primaries
        answers = await asyncio.gather(*(self._asking.link(node).answer(words) for node in nodes), return_exceptions=True)
        return dict(zip(nodes, answers, strict=True))

    async def answers(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers to single commands, each from its node. Raises what redis-py raises."""
        link = self.facade(replicated=False)
        try:
            return list(await asyncio.gather(*(link.answer(words) for words in commands)))
        finally:
            await link.close()

    async def infos(self, sections: Sequence[str]) -> list[dict[str, Any]]:
        """The fields of INFO of each primary that answers. Raises what the last one raised if none does."""
        answers = list((await self.everywhere(("INFO", *sections))).values())
        infos = [parse_info(answer) for answer in answers if not isinstance(answer, Exception)]
        if not infos:
            raise answers[-1]
        return infos

    def facade(self, *, replicated: bool) -> ClusterCallLink:
        return ClusterCallLink(self, replicated=replicated)

    def new_link(self, node: Node, *, replicated: bool) -> CallLink:
        kind = _NodeReplicatedLink if replicated else CallLink
        return kind(async_node_pool(self._address, node, self._options), within_s=self._within_s)

    async def aclose(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self._asking.close()


class NodeLinks:
    """Links of one kind, by node."""

    def __init__(self, cluster: CallNodes, *, replicated: bool) -> None:
        self._cluster, self._replicated = cluster, replicated
        self._links: dict[Node, CallLink] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def nodes(self) -> list[Node]:
        return list(self._links)

    def link(self, node: Node) -> CallLink:
        if node not in self._links:
            self._links[node] = self._cluster.new_link(node, replicated=self._replicated)
        return self._links[node]

    def keep(self, nodes: set[Node]) -> None:
        """Close the links to all others."""
        for node in [node for node in self._links if node not in nodes]:
            task = asyncio.get_running_loop().create_task(self._links.pop(node).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        self.keep(set())
        await asyncio.gather(*self._closing, return_exceptions=True)


class ClusterCallLink:
    """As `CallLink`; with `replicated` as `ReplicatedLink`, where the replica of the call's node confirms its writes."""

    def __init__(self, cluster: CallNodes, *, replicated: bool = False) -> None:
        self._cluster, self._replicated = cluster, replicated
        self._links = NodeLinks(cluster, replicated=replicated)
        self._opening: asyncio.Task[Any] | None = None

    def waits_for(self, function: str) -> bool:
        return self._replicated and ReplicatedLink.is_waited_for(function)

    def open(self) -> None:
        """Begin to connect."""
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            for node in (await self._cluster.topology()).primaries:
                self._links.link(node).open()
        except (redis.RedisError, OSError):
            return  # the first call says why

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._links.close()

    def call(self, command: Sequence[Any]) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_task(self.answer(command))

    async def answer(self, command: Sequence[Any]) -> Any:
        """Send the command and return the answer; raises what redis-py raises. Only what no node took is sent again."""
        words, key = guarded(command), key_of(command)
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            node = await self._cluster.owner(key)
            try:
                return await self._links.link(node).answer(words)
            except UNTAKEN as untaken:
                self._cluster.view.on_untaken(untaken, node, time.monotonic())
                if time.monotonic() >= give_up_at:
                    raise
            except AWAY:
                self._cluster.view.forget()
                raise
            await asyncio.sleep(PAUSE_S)

    async def load(self, source: str) -> None:
        """Load the library on every primary. Raises what redis-py raises."""
        for reply in (await self._cluster.everywhere(("FUNCTION", "LOAD", source))).values():
            if isinstance(reply, Exception) and "already exists" not in str(reply):
                raise reply


class _NodeReplicatedLink(ReplicatedLink):
    """To one node of a cluster, which has a part of the keys."""

    def mark(self, command: Sequence[Any]) -> Sequence[Any]:
        return ("SET", beside("replicated", key_of(command)), "1")
