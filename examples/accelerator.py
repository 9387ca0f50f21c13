"""A stand-in for an accelerator, to see batching at work without one: a batch of b inputs takes 5 ms + b * 0.5 ms."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import ClassVar

from penstock import Handler

START_S = 0.005
ITEM_S = 0.0005


@dataclass
class Digest:
    sha256: str
    length: int


class Accelerator(Handler):
    """SHA-256 and length of the body, at the speed of a device with a fixed cost per call and a small one per item."""

    max_batch_size: ClassVar[int | None] = 32
    sample = b"warm-up"

    def preprocess(self, inputs: list[bytes], /) -> list[bytes]:
        return inputs

    def inference(self, batch: list[bytes], /) -> list[bytes]:
        time.sleep(START_S + ITEM_S * len(batch))
        return batch

    def postprocess(self, outputs: list[bytes], /) -> list[Digest]:
        return [Digest(hashlib.sha256(body).hexdigest(), len(body)) for body in outputs]
