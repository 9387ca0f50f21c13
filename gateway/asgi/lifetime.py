"""Where this process stands between its start and its end."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

# Answers still owed are given this long before the server would cut them off.
LAST_WORDS_S = 2.0


@dataclass(slots=True)
class Lifetime:
    """`started`: the store was reached once. Moments are monotonic seconds."""

    started: bool = False
    cut_at: float = math.inf

    def drain(self, grace_s: float) -> None:
        """Not ready from now on; long-polls are answered at once, predictions shortly before `grace_s` is over."""
        self.cut_at = min(self.cut_at, time.monotonic() + grace_s - LAST_WORDS_S)

    def draining(self) -> bool:
        return self.cut_at < math.inf

    def last_call(self) -> bool:
        return time.monotonic() >= self.cut_at
