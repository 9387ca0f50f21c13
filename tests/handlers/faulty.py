"""Handlers that go wrong on purpose, for tests. The input says what the handler does; every other input is echoed.

Inputs: `{"do": ..., ...}` with `echo`, `raise`, `fail`, `sleep`, `wait`, `hang`, `segfault`, `exit`, `exhaust`, `short` or
`device`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from dataclasses import dataclass
from typing import Any

from penstock import Context, Failure, Handler


@dataclass
class Order:
    do: str = "echo"
    tag: Any = None
    seconds: float = 0.1


class Faulty(Handler):
    """A handler that obeys each item's order during inference; `raise` and the crashes end the whole call."""

    def inference(self, batch: list[Order], /) -> list[Any]:
        outputs = [_obey(order) for order in batch]
        return outputs[:-1] if any(order.do == "short" for order in batch) else outputs


class FaultyInput(Handler):
    """A handler that obeys the same orders during preprocess."""

    def preprocess(self, inputs: list[Order], /) -> list[Any]:
        return [_obey(order) for order in inputs]

    def inference(self, batch: list[Any], /) -> list[Any]:
        return batch


class SmallMemory(Handler):
    """Runs out of memory if a batch has more than `options.fits` items (default 2), or an item with the order `exhaust`."""

    def initialize(self, context: Context, /) -> None:
        self._fits = int(context.options.get("fits", 2))

    def inference(self, batch: list[Order], /) -> list[Any]:
        if len(batch) > self._fits or any(order.do == "exhaust" for order in batch):
            raise MemoryError(f"{len(batch)} items do not fit")
        return [order.tag for order in batch]


class Accelerated(Handler):
    """Acts like a broken GPU: after an item with the order `device`, every call of this process raises that item's `tag`."""

    def initialize(self, context: Context, /) -> None:
        self._broken = str(context.options.get("broken", ""))

    def inference(self, batch: list[Order], /) -> list[Any]:
        self._broken = next((str(order.tag) for order in batch if order.do == "device"), self._broken)
        if self._broken:
            raise RuntimeError(self._broken)
        return [order.tag for order in batch]


class NoStart(Handler):
    """A handler that cannot be loaded."""

    def initialize(self, context: Context, /) -> None:
        raise RuntimeError("the weights are missing")

    def inference(self, batch: list[Any], /) -> list[Any]:
        return batch


class SlowStart(Handler):
    """A handler that takes `options.seconds` (default 1) to load."""

    def initialize(self, context: Context, /) -> None:
        time.sleep(float(context.options.get("seconds", 1.0)))

    def inference(self, batch: list[Any], /) -> list[Any]:
        return batch


def _obey(order: Order) -> Any:
    deed = _DEEDS.get(order.do)
    return order.tag if deed is None else deed(order)


def _raise(order: Order) -> Any:
    raise ValueError(f"bad item {order.tag!r}")


def _sleep(order: Order) -> Any:
    time.sleep(order.seconds)
    return order.tag


def _wait(order: Order) -> Any:
    """Wait until the file that `tag` names is there."""
    while not os.path.exists(order.tag):
        time.sleep(0.01)
    return order.tag


def _hang(order: Order) -> Any:
    threading.Event().wait()


def _segfault(order: Order) -> Any:
    ctypes.string_at(0)


def _exhaust(order: Order) -> Any:
    """Take memory until the limit of the process refuses more; without a limit, stop at 64 GiB of touched pages."""
    return len([b"\xff" * (64 << 20) for _ in range(1024)])


_DEEDS = {
    "raise": _raise,
    "fail": lambda order: Failure(f"refused {order.tag!r}", code="refused"),
    "sleep": _sleep,
    "wait": _wait,
    "hang": _hang,
    "segfault": _segfault,
    "exit": lambda order: os._exit(3),
    "exhaust": _exhaust,
}
