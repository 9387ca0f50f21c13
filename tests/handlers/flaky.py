"""A handler whose calls fail as often as an item says, each time with another error."""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock import Failure, Handler


class Flaky(Handler):
    """Items are `{"name": ..., "raises": n, "busy": n}`: so many attempts raise, then so many return a `Failure`."""

    def initialize(self, context: object, /) -> None:
        self.attempts: Counter[str] = Counter()

    def inference(self, batch: list[Any], /) -> list[Any]:
        return [self._one(item) for item in batch]

    def _one(self, item: dict[str, Any]) -> Any:
        self.attempts[item["name"]] += 1
        attempt = self.attempts[item["name"]]
        if attempt <= item["raises"]:
            raise ConnectionResetError("the service hung up")
        if attempt <= item["raises"] + item["busy"]:
            return Failure("the service is busy", code="busy")
        return attempt
