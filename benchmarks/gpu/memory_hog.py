"""A model that needs a fixed share of the GPU's memory per item, so that CUDA runs out of memory at a full batch."""

from __future__ import annotations

import time
from typing import Any

from penstock import Context, Handler

# About a dozen of a batch of 64 items fit.
SHARE_PER_ITEM = 1 / 14
# Stands for the model's computation, during which the queue fills.
_COMPUTE_S = 0.05


class MemoryHog(Handler):
    """Fills a tensor of a fourteenth of the device's memory per item, and returns the items."""

    def initialize(self, context: Context, /) -> None:
        import torch

        self._torch: Any = torch
        self._device = context.device
        total = torch.cuda.get_device_properties(context.device).total_memory
        self._item_bytes = int(total * SHARE_PER_ITEM)
        self.provider = torch.cuda.get_device_name(context.device)

    def inference(self, batch: list[Any], /) -> list[Any]:
        tensors = []
        try:
            for _ in batch:
                # One by one, like the activations of items; the memory comes from torch's allocator.
                tensors.append(self._torch.empty(self._item_bytes, dtype=self._torch.uint8, device=self._device).fill_(1))
            self._torch.cuda.synchronize()
            time.sleep(_COMPUTE_S)
        finally:
            tensors.clear()
            self._torch.cuda.empty_cache()
        return list(batch)
