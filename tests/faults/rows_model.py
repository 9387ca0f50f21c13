"""A model for runs under faults: it doubles a number, takes a little time per row, and notes how many rows it ran.

Its outputs differ in length each time, as those of many models do: two drivers that write one file then tear its lines.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

from penstock import Context, Handler


class Rows(Handler):
    def initialize(self, context: Context) -> None:
        options = context.options
        self._row_s = float(options.get("row_s", 0.0))
        self._log = os.open(options["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def inference(self, batch: list[Any]) -> list[Any]:
        time.sleep(self._row_s * len(batch))
        if batch != [None] * len(batch):
            os.write(self._log, b"%d\n" % len(batch))
        return [{"y": 2 * item["x"], "pad": "x" * random.randrange(9)} for item in batch]
