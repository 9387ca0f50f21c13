"""The store of runs over the connection of a job store: one class that blocks, one for an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.broker.store import registry, run_ops
from penstock.broker.store.ops import Command, Operation, awaited, blocking

if TYPE_CHECKING:
    from penstock.broker.store.aio import AsyncStore
    from penstock.broker.store.sync import RedisStore

Reply = TypeVar("Reply")


class RunStore:
    """Who works on a run, how far it is, and what callers asked of it; thread-safe only as far as `store` is.

    Every call is one atomic, durable step, and may be repeated after a lost reply; raises `StoreUnavailable`. `driver` is a
    name that no other process ever has. With `owner` None the run may be any owner's. Moments are by Redis' clock.
    """

    def __init__(self, store: RedisStore) -> None:
        self.store = store

    def run(self, operation: Operation[Reply]) -> Reply:
        return self.store.run(operation)

    def send(self, command: Command[Reply]) -> Reply:
        return self.store.send(command)

    now = blocking(registry.clock)
    create = blocking(run_ops.create)
    page = blocking(run_ops.page)
    take = blocking(run_ops.take)
    look = blocking(run_ops.look)
    next_of = blocking(run_ops.next_of)
    split = blocking(run_ops.split)
    parts = blocking(run_ops.parts)
    update = blocking(run_ops.update)
    reopen = blocking(run_ops.reopen)
    ask_cancel = blocking(run_ops.ask_cancel)
    read = blocking(run_ops.read)
    drop = blocking(run_ops.drop)


class AsyncRunStore:
    """The part of `RunStore` that callers need, without the driver's part, for a gateway's event loop."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def run(self, operation: Operation[Reply]) -> Reply:
        return await self._store.run(operation)

    async def send(self, command: Command[Reply]) -> Reply:
        return await self._store.send(command)

    now = awaited(registry.clock)
    create = awaited(run_ops.create)
    room = awaited(run_ops.room)
    page = awaited(run_ops.page)
    ask_cancel = awaited(run_ops.ask_cancel)
    read = awaited(run_ops.read)
    parts = awaited(run_ops.parts)
    drop = awaited(run_ops.drop)
