"""A service with one worker. BentoML refuses with 503 after `max_latency_ms`, which is far above the waits of these loads."""

from __future__ import annotations

from typing import Any

import bentoml
import launch

BATCHING = {"batchable": True, "max_batch_size": launch.BATCH, "max_latency_ms": 60_000} if launch.BATCH > 1 else {}


@bentoml.service(workers=1, traffic={"timeout": 60, "max_concurrency": 1024})
class Peer:
    def __init__(self) -> None:
        self.function = launch.load_function()

    @bentoml.api(**BATCHING)
    def predict(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return self.function(items)
