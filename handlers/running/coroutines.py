"""Handlers whose `inference` is a coroutine: each item is a task of its own, side by side on one event loop (D75)."""

from __future__ import annotations

import asyncio
import atexit
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from math import inf
from time import monotonic
from typing import Any

from penstock.errors import HandlerContractError, HandlerTimeout
from penstock.handlers.contract import Context, Failure, failure_of
from penstock.handlers.running.call import InHand, RunningItem
from penstock.handlers.running.turns import ItemTurns

# D75, D87: docs/design/workers-and-devices.md
CANCELLED = "cancelled"
_UNWANTED = "its run was stopped, because its output is no longer wanted"
# An item may run for this share of `max_run_s`, so that there is time to answer for its neighbours.
_SHARE = 0.8
_TOO_LONG = "it ran for more than four fifths of max_run_s"
Coroutine = Callable[[list[Any]], Awaitable[list[Any]]]
# Called for each item that begins (True) or ends (False).
OnTurn = Callable[[bool], None]
# The item that this task runs.
_IN_HAND: ContextVar[InHand] = ContextVar("in_hand")
# How often the watch looks for tasks that are no longer wanted.
_LOOK_S = 0.05
_STANDSTILL_S = 0.5
_COMPLAIN_EVERY_S = 60.0


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process. It turns in the thread that runs the model."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def run_to_end(awaitable: Awaitable[Any]) -> Any:
    async def awaited() -> Any:
        return await awaitable

    return event_loop().run_until_complete(awaited())


@dataclass(slots=True, eq=False)
class _ItemRun:
    """One item that runs or waits for its turn: `began_at` is then infinity."""

    item: RunningItem
    on_turn: OnTurn | None
    task: asyncio.Task[Any] | None = None
    began_at: float = inf

    @property
    def alive_at(self) -> float:
        """When it began, or last said how far it is."""
        return max(self.began_at, self.item.progressed_at)


class CoroutineStage:
    """The stage of a list that gives each item to a call of its own. At most `at_once` of all lists' calls run at once.

    An item that raises fails alone. So does one that is no longer wanted, or that runs for too long: its task is cancelled,
    before the worker would end the process with all items.
    """

    def __init__(self, inference: Coroutine, context: Context, *, name: str, at_once: int) -> None:
        self._inference = inference
        self._running = context.running
        self._running.of_task = _IN_HAND
        self._name = name
        self._turns = ItemTurns(at_once)
        self._runs: set[_ItemRun] = set()
        self._watch: asyncio.Task[None] | None = None
        self._looked_at = self._complained_at = float("-inf")

    def __call__(self, batch: list[Any]) -> list[Any]:
        """Run these items and no others, to their end."""
        number, places, told = self._running.in_hand
        if len(places) != len(batch):
            # In a loop without a worker no job waits for a single item.
            number, places, told = 0, range(len(batch)), None
        outputs: list[Any] = event_loop().run_until_complete(self.run(batch, InHand(number, places, told)))
        return outputs

    async def run(self, values: Sequence[Any], hand: InHand, on_turn: OnTurn | None = None) -> list[Any]:
        """One output or `Failure` per value. `hand` names the items; those of no batch are rows of a run, and stand back."""
        runs = [_ItemRun(item, on_turn) for item in self._running.items_of(hand)]
        for value, place, run in zip(values, hand.places, runs, strict=True):
            run.task = asyncio.create_task(self._one(value, hand._replace(places=(place,)), run))
        self._begin(runs)
        return list(await asyncio.gather(*(run.task for run in runs if run.task)))

    async def _one(self, value: Any, hand: InHand, run: _ItemRun) -> Any:
        _IN_HAND.set(hand)
        try:
            return await self._in_turn(value, run, is_row=not hand.batch)
        except asyncio.CancelledError as stopped:
            return failure_of(HandlerTimeout(_TOO_LONG)) if stopped.args == (_TOO_LONG,) else Failure(_UNWANTED, CANCELLED)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            return failure_of(error)
        finally:
            self._end(run)

    async def _in_turn(self, value: Any, run: _ItemRun, *, is_row: bool) -> Any:
        if await self._turns.begin(is_row=is_row):
            run.item.begin()
        run.began_at = monotonic()
        if run.on_turn is not None:
            run.on_turn(True)
        try:
            return _only(await self._inference([value]))
        finally:
            if run.on_turn is not None:
                run.on_turn(False)
            self._turns.end(is_row=is_row)

    # The watch: a task of its own while any item runs.

    def _begin(self, runs: Sequence[_ItemRun]) -> None:
        self._runs.update(runs)
        if self._watch is None and self._runs:
            self._looked_at = monotonic()
            self._watch = asyncio.create_task(self._look())

    def _end(self, run: _ItemRun) -> None:
        self._runs.discard(run)
        if not self._runs and self._watch is not None:
            self._watch.cancel()
            self._watch = None
            self._note_standstill()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._note_standstill()
            for run in list(self._runs):
                is_late = monotonic() - run.alive_at > _SHARE * self._running.max_run_s
                if run.task is not None and (is_late or run.item.cancelled):
                    run.task.cancel(_TOO_LONG if is_late else None)

    def _note_standstill(self) -> None:
        """Log that the loop did not turn for long: meanwhile no other item progressed."""
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
