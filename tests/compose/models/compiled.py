"""A model that torch.compile turns into machine code while it is loaded, as models on a GPU are."""

from __future__ import annotations

import penstock


class Compiled(penstock.Handler):
    max_batch_size = 4
    max_wait_s = 0.0

    def initialize(self, context: penstock.Context) -> None:
        import torch

        self._torch = torch
        self._model = torch.compile(lambda x: (x * 2 + 1).relu())
        self._model(torch.zeros(1))

    def inference(self, batch: list[float], /) -> list[float]:
        outputs: list[float] = self._model(self._torch.tensor(batch)).tolist()
        return outputs
