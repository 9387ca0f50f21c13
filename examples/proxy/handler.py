"""Passes each item on to another HTTP service: many requests at once, each tried again and given up by itself."""

import os
from typing import Any

import httpx2

import penstock


class Proxy(penstock.Handler):
    max_batch_size = 64  # also the number of requests under way at once

    async def initialize(self, context: penstock.Context) -> None:
        # One client for all: it keeps its connections.
        self.client = httpx2.AsyncClient(timeout=10.0)
        self.url = os.environ["SERVICE_URL"]
        self.answers = context.metrics.counter("service_answers", ("status",), help="Answers of the service.")

    async def inference(self, batch: list[Any]) -> list[Any]:
        answer = await self.client.post(self.url, json=batch[0])
        self.answers.inc(status=answer.status_code)
        if answer.status_code == 429 or answer.status_code >= 500:
            return [penstock.Failure(f"the service answered {answer.status_code}", "service_busy")]
        return [answer.raise_for_status().json()]
