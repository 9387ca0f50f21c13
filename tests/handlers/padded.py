"""Stand-ins whose calls take time: two pad to the longest text, and for an accelerator the length of texts is nothing."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from penstock import Handler


class Plain(Handler):
    """Pads: 2 ms and 20 us per character, padding included. Answers with the text's length and how many shared its call."""

    max_batch_size: ClassVar[int | None] = 16

    def inference(self, batch: list[Any], /) -> list[Any]:
        time.sleep(0.002 + 0.000_02 * len(batch) * max(map(len, batch)))
        return [[text[:8], len(text), len(batch)] for text in batch]


class Costed(Plain):
    def cost(self, item: Any, /) -> float:
        if item.startswith("bad"):
            raise ValueError("no cost for this one")
        return len(item)


class Accelerator(Plain):
    """5 ms and 0.5 ms per item."""

    def inference(self, batch: list[Any], /) -> list[Any]:
        time.sleep(0.005 + 0.000_5 * len(batch))
        return [[text[:8], len(text), len(batch)] for text in batch]
