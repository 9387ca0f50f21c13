"""Requests for embeddings and their responses in OpenAI's form, as values. Pure."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import BadParameter, PenstockError

MAX_INPUTS = 2_048
_MEMBERS = frozenset({"model", "input", "encoding_format", "dimensions", "user"})


class NoEmbedding(PenstockError):
    """The model's output is not a vector."""

    kind = "not_an_embedding"


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """`inputs` are texts, or lists of token ids (`tokens`)."""

    model: str
    inputs: tuple[Any, ...]
    tokens: bool = False
    base64: bool = False
    dimensions: int | None = None

    @property
    def token_count(self) -> int:
        """The number of tokens of token inputs. A text counts as 0, because only the model knows its tokens."""
        return sum(map(len, self.inputs)) if self.tokens else 0


def read_request(body: Any) -> EmbeddingRequest:
    """Raises `BadParameter` naming the member that is wrong."""
    if not isinstance(body, dict):
        raise BadParameter("the body must be an object with `model` and `input`", param="input")
    unknown = next((name for name in body if name not in _MEMBERS), None)
    if unknown is not None:
        raise BadParameter(f"unknown parameter {unknown[:80]!r}", param=unknown[:80])
    model, dimensions = body.get("model"), body.get("dimensions")
    if not isinstance(model, str):
        raise BadParameter("`model` must be the name of a model", param="model")
    encoding = body.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise BadParameter("`encoding_format` is float or base64", param="encoding_format")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise BadParameter("`dimensions` must be a positive whole number", param="dimensions")
    inputs, tokens = _inputs(body.get("input"))
    return EmbeddingRequest(model, inputs, tokens, encoding == "base64", dimensions)


def _inputs(given: Any) -> tuple[tuple[Any, ...], bool]:
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not given:
        raise BadParameter("`input` must be a text, a list of texts, token ids, or a list of lists of them", param="input")
    if all(isinstance(item, str) for item in given):
        return _few(tuple(given)), False
    lists = given if all(isinstance(item, list) for item in given) else [given]
    if not all(item and all(type(token) is int and token >= 0 for token in item) for item in lists):
        raise BadParameter("`input` must be a text, a list of texts, token ids, or a list of lists of them", param="input")
    return _few(tuple(lists)), True


def _few(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(inputs) > MAX_INPUTS:
        raise BadParameter(f"`input` has {len(inputs)} entries; the limit is {MAX_INPUTS}", param="input")
    return inputs


def answer_of(asked: EmbeddingRequest, vectors: Sequence[list[float]]) -> dict[str, Any]:
    """Raises `BadParameter` for a length that the model does not have."""
    for vector in vectors:
        if asked.dimensions is not None and len(vector) != asked.dimensions:
            raise BadParameter(f"the model's vectors have {len(vector)} dimensions, not another number", param="dimensions")
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if asked.base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": asked.token_count, "total_tokens": asked.token_count}
    return {"object": "list", "data": data, "model": asked.model, "usage": usage}


def vector_of(output: Any, model: str) -> list[float]:
    """A list of numbers, or an object that has one as `embedding`; raises `NoEmbedding` for anything else."""
    vector = output.get("embedding") if isinstance(output, dict) else output
    if not isinstance(vector, list) or not vector or not all(type(number) in (float, int) for number in vector):
        raise NoEmbedding(f"model {model!r} gave no vector", hint="/v1/embeddings serves models that turn a text into numbers.")
    return vector


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
