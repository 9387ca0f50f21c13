"""A stand-in so slow that two of them, penstock and the load fit on two cores: a batch of b takes 20 ms + b * 4 ms."""

from __future__ import annotations

import time

from penstock import Handler

START_S = 0.020
ITEM_S = 0.004


class SlowDevice(Handler):
    """Returns the length of the body."""

    sample = b"warm-up"

    def inference(self, batch: list[bytes], /) -> list[bytes]:
        time.sleep(START_S + ITEM_S * len(batch))
        return batch

    def postprocess(self, outputs: list[bytes], /) -> list[int]:
        return [len(body) for body in outputs]
