"""Names of classes, and the best classes from scores. Arrays are those of one item, without a batch axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.errors import HandlerContractError, HandlerLoadError
from penstock.handlers.contract import Failure

if TYPE_CHECKING:
    from numpy.typing import NDArray

Activation = Literal["softmax", "sigmoid", "none"]
# A usual name for the file. It is read without an option, so that folders that have one work unchanged.
USUAL_FILE = "index_to_name.json"
# A Failure and not an error: a model may answer NaN for the blank image of the warm-up and for no other.
NOT_NUMBERS = Failure(
    "the model answered NaN instead of scores: check its weights, its precision and the preprocessing of its input",
    HandlerContractError.kind,
)
_SHAPES = 'a list of names, {"0": "name"}, {"0": ["id", "name"]} or {"object_type_names": [...]}'


class Labels:
    """The name of each class id. An id without a name is named by its number."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = _distinct(names)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return (self._names[index] if 0 <= index < len(self._names) else "") or str(index)


def read_labels(folder: Path, name: str) -> Labels:
    """The labels from the file `name` in `folder`: .json, or one name per line. By default `index_to_name.json`, if any."""
    path = folder / (name or USUAL_FILE)
    if not name and not path.exists():
        return Labels()
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HandlerLoadError(f"the labels file {path} cannot be read: {error}; it must be next to the model") from error
    if path.suffix != ".json":
        return Labels([line.strip() for line in text.splitlines()])
    return Labels(_from_json(path, text))


def _from_json(path: Path, text: str) -> list[str]:
    try:
        content = msgspec.json.decode(text)
        names = content["object_type_names"] if isinstance(content, dict) and "object_type_names" in content else content
        by_id = {int(key): value for key, value in names.items()} if isinstance(names, dict) else dict(enumerate(names))
        ordered = [_name(by_id.get(index, "")) for index in range(max(by_id, default=-1) + 1)]
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise HandlerLoadError(f"the labels file {path} is not {_SHAPES}: {error}") from error
    return ordered


def _name(value: Any) -> str:
    """A name, or the last of a list such as ["n01440764", "tench"]."""
    return str(value[-1]) if isinstance(value, list) and value else str(value)


def _distinct(names: Sequence[str]) -> list[str]:
    """The names with ids added to repeated ones: ImageNet has two cranes, and as JSON keys one would be lost."""
    seen: Counter[str] = Counter()
    distinct = []
    for index, name in enumerate(names):
        distinct.append(f"{name} ({index})" if name and seen[name] else name)
        seen[name] += 1
    return distinct


def activated(scores: NDArray[Any], activation: Activation) -> NDArray[Any]:
    """Scores as probabilities, in float32 at least: over the last axis (softmax), or each on its own (sigmoid)."""
    import numpy as np

    values = np.asarray(scores, dtype=np.result_type(scores, np.float32))
    if activation == "none":
        return values
    if activation == "sigmoid":
        # With tanh, because exp overflows for large negative scores.
        return 0.5 * (1.0 + np.tanh(0.5 * values))
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def class_scores(outputs: NDArray[Any], activation: Activation) -> NDArray[Any]:
    """Probabilities [items, classes] from an output with the items as first axis.

    Raises `HandlerContractError` unless the output has one score per class. Axes of size 1 are allowed, because the last layer
    may be a convolution.
    """
    if sum(side != 1 for side in outputs.shape[1:]) > 1:
        raise HandlerContractError(
            f"classification reads one score per class, [classes]; the model's output has shape {list(outputs.shape[1:])} per "
            "input: choose another output with the option output, or another task"
        )
    return activated(outputs.reshape(len(outputs), -1), activation)


def best(values: NDArray[Any], count: int, labels: Labels) -> dict[str, float] | Failure:
    """The `count` highest values by name, best first, equal ones in the order of their ids. A `Failure` if any value is NaN."""
    import numpy as np

    flat = values.reshape(-1)
    if np.isnan(flat).any():
        return NOT_NUMBERS
    order = (-flat).argsort(kind="stable")[:count]
    return {labels.name(int(index)): float(flat[index]) for index in order}
