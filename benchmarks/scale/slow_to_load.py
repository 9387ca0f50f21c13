"""A model that takes a while to load and a tenth of a second per job, without using a core meanwhile."""

from __future__ import annotations

import time
from typing import Any

from penstock import Context, Handler

LOAD_S = 1.5
JOB_S = 0.1


class SlowToLoad(Handler):
    sample = 1

    def initialize(self, context: Context, /) -> None:
        time.sleep(LOAD_S)

    def inference(self, batch: list[Any], /) -> list[Any]:
        time.sleep(JOB_S * len(batch))
        return batch
