"""Text embedding: the meaning of a text as a vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from penstock.errors import HandlerContractError
from penstock.handlers.contract import Context
from penstock.handlers.tasks.text import TextOptions, TextTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

Pooling = Literal["mean", "cls", "max", "none"]


class TextEmbeddingOptions(TextOptions, kw_only=True, frozen=True):
    """`pooling` makes one vector of one per token; `none` is for models whose output is one vector. `normalize`: length 1."""

    pooling: Pooling = "mean"
    normalize: bool = True


class TextEmbedding(TextTask):
    """The meaning of a text as a vector: texts with similar meaning have vectors with a small angle between them."""

    task: ClassVar[str] = "text-embedding"
    usual_output: ClassVar[str] = "last_hidden_state"
    defaults: ClassVar[TextEmbeddingOptions] = TextEmbeddingOptions()
    options: TextEmbeddingOptions

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        self.output_schema = {"type": "array", "items": {"type": "number"}}

    def rows(self, outputs: dict[str, Array], mask: Array) -> Any:
        vectors = pooled(self.output(outputs), mask, self.options.pooling)
        return normalized(vectors) if self.options.normalize else vectors

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        """Arrays, not lists: a float32 is written with half the digits of a Python float."""
        return outputs


def pooled(states: Array, mask: Array, pooling: Pooling) -> Array:
    """One vector per text, in float32 at least, without padding. `mask` counts the tokens, which come first.

    Raises `HandlerContractError` for an output of another shape.
    """
    import numpy as np

    values = states.astype(np.result_type(states, np.float32), copy=False)
    wanted = 2 if pooling == "none" else 3
    if values.ndim != wanted:
        shapes = "[batch, width]" if wanted == 2 else "[batch, tokens, width]"
        raise HandlerContractError(f"pooling {pooling} takes an output {shapes}; the model's has shape {list(values.shape)}")
    if pooling in ("mean", "max") and values.shape[1] != mask.shape[1]:
        raise HandlerContractError(
            f"pooling {pooling} takes an output of one vector per token; for {mask.shape[1]} tokens the model's has shape "
            f"{list(values.shape)}"
        )
    if pooling == "none":
        return values
    if pooling == "cls":
        return np.asarray(values[:, 0])
    # Padding is left out instead of multiplied by 0: models that mask it as queries too answer NaN there, and this is cheaper.
    return np.stack(
        [_pooled_tokens(rows[:count], pooling) for rows, count in zip(values, mask.sum(axis=1).tolist(), strict=True)]
    )


def _pooled_tokens(tokens: Array, pooling: Pooling) -> Array:
    """One vector for the tokens of one text; zeros for a text without tokens."""
    import numpy as np

    if not len(tokens):
        return np.zeros(tokens.shape[1:], tokens.dtype)
    return np.asarray(tokens.max(axis=0) if pooling == "max" else tokens.mean(axis=0))


def normalized(vectors: Array) -> Array:
    """The vectors with length 1. A zero vector does not change."""
    import numpy as np

    lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1))
