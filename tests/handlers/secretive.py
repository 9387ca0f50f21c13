"""A handler that needs two environment variables and tells one of them wherever it can."""

from __future__ import annotations

import os

import penstock


class Secretive(penstock.Handler):
    def initialize(self, context: penstock.Context) -> None:
        self.key = os.environ["SERVICE_KEY"]
        print(f"loaded with {self.key} for {os.environ['SERVICE_URL']}")

    def inference(self, batch: list[str]) -> list[str | penstock.Failure]:
        return [os.environ.get(name) or penstock.Failure(f"no {name}, only {self.key}") for name in batch]
