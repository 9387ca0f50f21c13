"""Handlers whose `inference` is a coroutine: each item is a task of its own, side by side on one event loop (D75)."""

from __future__ import annotations

import asyncio
import atexit
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import cache
from time import monotonic
from typing import Any

from penstock.errors import HandlerContractError, HandlerTimeout
from penstock.handlers.contract import Context, Failure, failure_of
from penstock.handlers.running.call import RunningItem

CANCELLED = "cancelled"
_UNWANTED = "its run was stopped, because nobody waits for it any more"
# An item may run for this share of `max_run_s`: then there is time to answer for its neighbours.
_SHARE = 0.8
_TOO_LONG = "it ran for more than four fifths of max_run_s"
Coroutine = Callable[[list[Any]], Awaitable[list[Any]]]
# The places in its batch of the item that this task runs.
_PLACES: ContextVar[Sequence[int]] = ContextVar("places")
# How often tasks are looked at that nobody wants any more.
_LOOK_S = 0.05
_STANDSTILL_S = 0.5
_COMPLAIN_EVERY_S = 60.0


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process. It turns in the thread that runs the model, and only while that awaits something."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def run_to_end(awaitable: Awaitable[Any]) -> Any:
    async def awaited() -> Any:
        return await awaitable

    return event_loop().run_until_complete(awaited())


class CoroutineStage:
    """The stage of a list that gives each item to a call of its own. `most` calls run at once; None: all of a batch.

    An item that raises fails alone. So does one that nobody wants any more, or that runs for too long: its task is cancelled,
    before the worker would end the process with all items.
    """

    def __init__(self, inference: Coroutine, context: Context, *, name: str, most: int | None) -> None:
        self._inference = inference
        self._running = context.running
        self._running.of_task = _PLACES
        self._name = name
        self._most = most
        self._began_at = self._looked_at = self._complained_at = float("-inf")

    def __call__(self, batch: list[Any]) -> list[Any]:
        outputs: list[Any] = event_loop().run_until_complete(self._run(batch))
        return outputs

    async def _run(self, batch: list[Any]) -> list[Any]:
        room = asyncio.Semaphore(self._most or len(batch))
        # In a warm-up nobody waits for the items one by one.
        places = self._running.places if len(self._running.places) == len(batch) else range(len(batch))
        items = self._running.items if len(self._running.places) == len(batch) else []
        tasks = [asyncio.create_task(self._one(value, place, room)) for value, place in zip(batch, places, strict=True)]
        self._began_at = self._looked_at = monotonic()
        watch = asyncio.create_task(self._watch(tasks, items))
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            watch.cancel()
            self._note_standstill()

    async def _one(self, value: Any, place: int, room: asyncio.Semaphore) -> Any:
        _PLACES.set((place,))
        try:
            async with room:
                return _only(await self._inference([value]))
        except asyncio.CancelledError as stopped:
            return failure_of(HandlerTimeout(_TOO_LONG)) if stopped.args == (_TOO_LONG,) else Failure(_UNWANTED, CANCELLED)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            return failure_of(error)

    async def _watch(self, tasks: Sequence[asyncio.Task[Any]], items: Sequence[RunningItem]) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._note_standstill()
            is_late = self._has_run_long
            for place, task in enumerate(tasks):
                if not task.done() and (is_late or (items and items[place].cancelled)):
                    task.cancel(_TOO_LONG if is_late else None)

    @property
    def _has_run_long(self) -> bool:
        """Whether the worker would soon end this process. It counts from the latest progress, too."""
        running = self._running
        progressed_at = running.reporter.progressed_at if running.reporter else self._began_at
        return monotonic() - max(self._began_at, progressed_at) > _SHARE * running.max_run_s

    def _note_standstill(self) -> None:
        """Say so if the loop did not turn for long: meanwhile no other item got on."""
        now = monotonic()
        stood_s, self._looked_at = now - self._looked_at - _LOOK_S, now
        if stood_s > _STANDSTILL_S and now > self._complained_at + _COMPLAIN_EVERY_S:
            self._complained_at = now
            sys.stderr.write(
                f"{self._name} held up its event loop for {stood_s:.1f} s, and with it all other items; await what "
                "takes long, or run it with asyncio.to_thread\n"
            )


def _only(outputs: Any) -> Any:
    if not isinstance(outputs, (list, tuple)) or len(outputs) != 1:
        count = f"{len(outputs)} outputs" if isinstance(outputs, (list, tuple)) else type(outputs).__name__
        raise HandlerContractError(
            f"an async inference gets one item at a time, as a list of one, and returned {count}; return a list of one"
        )
    return outputs[0]
