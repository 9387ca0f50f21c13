"""A stand-in for a model on the CPU: a fixed amount of work per item, done without the interpreter's lock."""

from __future__ import annotations

import hashlib
from typing import Any

from penstock import Context, Handler


class Burner(Handler):
    """Computes `options.rounds` (default 10,000) rounds of a hash per item; each takes about 0.5 us of one core."""

    def initialize(self, context: Context, /) -> None:
        self._rounds = int(context.options.get("rounds", 10_000))

    def inference(self, batch: list[Any], /) -> list[Any]:
        return [hashlib.pbkdf2_hmac("sha256", b"penstock", b"burner", self._rounds).hex()[:8] for _ in batch]
