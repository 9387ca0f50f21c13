"""Handlers for tests/doors: an order in JSON says what comes back and when. Each protocol can carry such an order as a text."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import Context, Failure, Handler


@dataclass
class Order:
    order: str


@dataclass(frozen=True)
class Obeyed:
    n: float
    size: int = 0


class Obedience:
    """`n`: this number comes back; `say`: the sum of its code points; `ask: version`: the version's number; `size`: and this
    many characters more; `code`: fails with this code; `raise`: raises; `until`: waits for this file, or until nobody wants
    the item; `once`: fails unless this file exists, which is made then; `pad` is ignored.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def obey(self, place: int, text: str) -> Obeyed | Failure:
        order: dict[str, Any] = json.loads(text)
        if "once" in order and not (once := Path(order["once"])).exists():
            once.touch()
            return Failure("the first run of this order fails", code="first_run")
        if "until" in order:
            self._wait(place, Path(order["until"]))
        if "code" in order:
            return Failure(f"told to fail with {order['code']}", code=order["code"])
        if "raise" in order:
            raise RuntimeError("told to raise")
        return Obeyed(self._number(order), order.get("size", 0))

    def _number(self, order: dict[str, Any]) -> float:
        if order.get("ask") == "version":
            return float(self._context.version)
        return float(sum(map(ord, order["say"])) if "say" in order else order.get("n", 0))

    def _wait(self, place: int, gate: Path) -> None:
        gate.with_name(f"{gate.name}.begun").touch()
        item = self._context.items[place]
        while not gate.exists() and not item.cancelled:
            time.sleep(0.005)


class Orders(Handler):
    """Takes an object with the order, and answers with one."""

    def initialize(self, context: Context, /) -> None:
        self._obedience = Obedience(context)

    def inference(self, batch: list[Order], /) -> list[Any]:
        return [self._answer(self._obedience.obey(place, item.order)) for place, item in enumerate(batch)]

    def explain(self, batch: list[Order], /) -> list[Any]:
        return self.inference(batch)

    def _answer(self, obeyed: Obeyed | Failure) -> Any:
        return obeyed if isinstance(obeyed, Failure) else {"n": obeyed.n, "more": "x" * obeyed.size}


class Vectors(Handler):
    """The same for embeddings: takes the order as it is, and answers with numbers, of which the first counts."""

    def initialize(self, context: Context, /) -> None:
        self._obedience = Obedience(context)

    def inference(self, batch: list[str], /) -> list[Any]:
        return [self._answer(self._obedience.obey(place, text)) for place, text in enumerate(batch)]

    def _answer(self, obeyed: Obeyed | Failure) -> Any:
        return obeyed if isinstance(obeyed, Failure) else [obeyed.n, *[0.0] * (obeyed.size // 4)]


@dataclass
class StrangeOrder:
    other: int


class StrangeOrders(Handler):
    """A version that takes none of the orders."""

    def inference(self, batch: list[StrangeOrder], /) -> list[dict[str, Any]]:
        return [{"n": -1.0, "more": ""} for _ in batch]


class StrangeVectors(Handler):
    """The same beside `Vectors`."""

    def inference(self, batch: list[StrangeOrder], /) -> list[list[float]]:
        return [[-1.0] for _ in batch]
