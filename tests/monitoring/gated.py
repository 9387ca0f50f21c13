"""A model whose batches stay on the device for as long as a test wants."""

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
    """`gate`: wait until that file is there. `seconds`: take so long. `do`: echo, fail or crash."""

    do: str = "echo"
    gate: str = ""
    seconds: float = 0.0


class Gated(Handler):
    """A quarter of every batch is padding, or so it says."""

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
