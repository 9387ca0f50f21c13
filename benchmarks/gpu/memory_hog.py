"""A model that needs a fixed share of the GPU's memory per item, so that a full batch does not fit: real CUDA runs out."""

from __future__ import annotations

import time
from typing import Any

from penstock import Context, Handler

# The largest batch of 64 that fits is then about a dozen.
SHARE_PER_ITEM = 1 / 14
# As a model would compute: meanwhile the queue fills.
_COMPUTE_S = 0.05


class MemoryHog(Handler):
    """Each item's number, after a tensor of a fourteenth of the device has been filled for it."""

    def initialize(self, context: Context, /) -> None:
        import torch

        self._torch: Any = torch
        self._device = context.device
        total = torch.cuda.get_device_properties(context.device).total_memory
        self._item_bytes = int(total * SHARE_PER_ITEM)
        self.provider = torch.cuda.get_device_name(context.device)

    def inference(self, batch: list[Any], /) -> list[Any]:
        held = []
        try:
            for _ in batch:
                # One by one, as activations of an item are; plain device memory by the allocator of torch.
                held.append(self._torch.empty(self._item_bytes, dtype=self._torch.uint8, device=self._device).fill_(1))
            self._torch.cuda.synchronize()
            time.sleep(_COMPUTE_S)
        finally:
            held.clear()
            self._torch.cuda.empty_cache()
        return list(batch)
