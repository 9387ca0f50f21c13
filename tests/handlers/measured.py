"""Counts in metrics of its own. An item `exit` ends the process."""

import os

import penstock


class Measured(penstock.Handler):
    sample = "warm"

    def initialize(self, context: penstock.Context) -> None:
        self.items = context.metrics.counter("items", ("word",), help="Items by their word.")
        self.sizes = context.metrics.histogram("sizes", buckets=(1, 2, 4))
        context.metrics.gauge("words").set(3)

    def inference(self, batch: list[str]) -> list[str]:
        self.sizes.observe(len(batch))
        for word in batch:
            if word == "exit":
                os._exit(3)
            self.items.inc(word=word)
        return batch
