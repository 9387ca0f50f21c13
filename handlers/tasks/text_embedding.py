"""The meaning of a text as a vector."""

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
    """`pooling` makes one vector of a vector per token; none: the model's output is one already. `normalize`: length 1."""

    pooling: Pooling = "mean"
    normalize: bool = True


class TextEmbedding(TextTask):
    """The meaning of a text as a vector: near in meaning, near in angle."""

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
        """Left as arrays: they are written with the digits of a float32, half of those that Python's floats would have."""
        return outputs


def pooled(states: Array, mask: Array, pooling: Pooling) -> Array:
    """One vector per text, in float32 at least, of its own tokens alone: those that `mask` counts come first. Raises
    `HandlerContractError` for another shape."""
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
    # Rows of padding are left out, not multiplied by 0: a model that masks them as queries too answers NaN there. It is the
    # cheaper way, too.
    return np.stack([_over(rows[:count], pooling) for rows, count in zip(values, mask.sum(axis=1).tolist(), strict=True)])


def _over(tokens: Array, pooling: Pooling) -> Array:
    """One vector for the tokens of one text; zeros where it has none."""
    import numpy as np

    if not len(tokens):
        return np.zeros(tokens.shape[1:], tokens.dtype)
    return np.asarray(tokens.max(axis=0) if pooling == "max" else tokens.mean(axis=0))


def normalized(vectors: Array) -> Array:
    """Each of length 1; a zero vector stays one."""
    import numpy as np

    lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1))
