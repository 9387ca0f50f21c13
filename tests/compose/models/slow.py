"""A model that takes as long as its input says, so that jobs are in progress while containers stop and die."""

from __future__ import annotations

import time
from dataclasses import dataclass

import penstock


@dataclass
class Nap:
    seconds: float
    number: int


class Slow(penstock.Handler):
    max_batch_size = 4
    max_wait_s = 0.0

    def inference(self, batch: list[Nap], /) -> list[int]:
        time.sleep(max(nap.seconds for nap in batch))
        return [nap.number for nap in batch]
