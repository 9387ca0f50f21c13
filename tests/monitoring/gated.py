"""A model whose batches stay on the device until the test opens a gate."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import Failure, Handler

_POLL_S = 0.02
_LONGEST_S = 60.0


@dataclass
class Order:
    """The model's task for one item: wait until the file `gate` exists, sleep `seconds`, then echo, fail or crash (`do`)."""

    do: str = "echo"
    gate: str = ""
    seconds: float = 0.0


class Gated(Handler):
    """The model claims that a quarter of every batch is padding, so that the metric of padding has data."""

    padding_ratio = 0.25

    def inference(self, batch: list[Order], /) -> list[Any]:
        return [_obey(order) for order in batch]


def _obey(order: Order) -> Any:
    give_up_at = time.monotonic() + _LONGEST_S
    while order.gate and not Path(order.gate).exists() and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)
    time.sleep(order.seconds)
    if order.do == "crash":
        ctypes.string_at(0)
    return Failure("refused", code="refused") if order.do == "fail" else order.do
