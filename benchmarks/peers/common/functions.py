"""The function that every server under comparison runs, from a list of inputs to a list of answers, one per input.

Runs in each server's own environment, so it imports nothing but what the workload needs.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Function = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]

# As in examples/accelerator.py.
START_S = 0.005
ITEM_S = 0.0005
# As in examples/embeddings/handler.py.
MOST_TOKENS = 256


def square(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"y": item["x"] * item["x"]} for item in items]


def accelerate(items: list[Any]) -> list[dict[str, Any]]:
    """The pace of a device that pays 5 ms per call and 0.5 ms per item; one call at a time, so each server gets one worker.

    An item is an object with a text, or a body of bytes.
    """
    time.sleep(START_S + ITEM_S * len(items))
    bodies = [item["text"].encode() if isinstance(item, dict) else item for item in items]
    return [{"sha256": hashlib.sha256(body).hexdigest(), "length": len(body)} for body in bodies]


class Embed:
    """all-MiniLM-L6-v2 on ONNX Runtime, one thread: texts padded to the longest of the batch, one call for the batch.

    `tokens` and `vectors` are the two stages of a server that runs them apart.
    """

    def __init__(self, model_folder: Path) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model_folder / "model.onnx", options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(MOST_TOKENS)
        # The file asks for texts of 128 tokens each.
        self._tokenizer.no_padding()

    def __call__(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return self.vectors(self.tokens(items))

    def tokens(self, items: list[dict[str, Any]]) -> list[Any]:
        """The token ids of each text, as arrays."""
        import numpy as np

        return [np.array(one.ids, np.int64) for one in self._tokenizer.encode_batch([item["text"] for item in items])]

    def vectors(self, texts: list[Any]) -> list[dict[str, Any]]:
        import numpy as np

        ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
        mask = np.zeros_like(ids)
        for row, found in enumerate(texts):
            ids[row, : len(found)], mask[row, : len(found)] = found, 1
        (sentences,) = self._session.run(None, {"ids": ids, "mask": mask})
        return [{"embedding": row} for row in sentences.tolist()]


def function_of(workload: str, model_folder: Path) -> Function:
    """Loads the workload's model, if it has one."""
    plain: dict[str, Function] = {"noop": square, "accelerator": accelerate, "accelerator_100k": accelerate}
    return plain[workload] if workload in plain else Embed(model_folder)
