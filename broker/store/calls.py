"""Operations as methods: `read = blocking(ops.read)` in a store that blocks, `read = awaited(ops.read)` for an event loop.

A method takes what the function that describes its operation takes, with the same names and defaults, and returns what the
reply means.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from penstock.broker.store.ops import Command, Operation

Reply = TypeVar("Reply")
Asked = ParamSpec("Asked")


class BlockingCalls(Protocol):
    def run(self, operation: Operation[Reply], /) -> Reply: ...

    def send(self, command: Command[Reply], /) -> Reply: ...


class AwaitedCalls(Protocol):
    async def run(self, operation: Operation[Reply], /) -> Reply: ...

    async def send(self, command: Command[Reply], /) -> Reply: ...


def blocking(
    describe: Callable[Asked, Operation[Reply] | Command[Reply]],
) -> Callable[Concatenate[BlockingCalls, Asked], Reply]:
    """A method that makes the call which `describe` describes. It raises `StoreUnavailable`."""

    def call(store: BlockingCalls, /, *args: Asked.args, **named: Asked.kwargs) -> Reply:
        asked = describe(*args, **named)
        return store.run(asked) if isinstance(asked, Operation) else store.send(asked)

    update_wrapper(call, describe)
    return call


def awaited(
    describe: Callable[Asked, Operation[Reply] | Command[Reply]],
) -> Callable[Concatenate[AwaitedCalls, Asked], Coroutine[Any, Any, Reply]]:
    """The same for an event loop."""

    async def call(store: AwaitedCalls, /, *args: Asked.args, **named: Asked.kwargs) -> Reply:
        asked = describe(*args, **named)
        return await (store.run(asked) if isinstance(asked, Operation) else store.send(asked))

    update_wrapper(call, describe)
    return call
