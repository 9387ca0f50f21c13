"""The common part of the text tasks: tokens from a tokenizer.json, and calls of texts with similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct

from penstock.errors import HandlerLoadError, InvalidInput
from penstock.handlers.array_handler import ArrayHandler
from penstock.handlers.contract import Context, Failure
from penstock.handlers.tasks.options import TaskOptions, check_output, output_of, read_options
from penstock.handlers.tasks.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

Count = Annotated[int, Meta(ge=1)]

# The names that exporters and common training libraries give the inputs of a text model.
_ROLES = {
    "input_ids": "ids",
    "ids": "ids",
    "tokens": "ids",
    "attention_mask": "mask",
    "mask": "mask",
    "token_type_ids": "kinds",
    "segment_ids": "kinds",
}
# Rows and tokens of one call. On a CPU larger calls are faster up to about 256 tokens; beyond that, caches and padding cost
# more than they gain (python -m benchmarks.models.length_buckets). On an accelerator larger calls are always faster.
_ON_CPU = (16, 256)
_ON_ACCELERATOR = (256, 16_384)


class TextOptions(TaskOptions, kw_only=True, frozen=True):
    """`max_tokens`: by default the tokenizer's own limit, else the model's, else 512; never more than the model's. A longer
    text is cut as the tokenizer's file says, or refused if `too_long` is `refuse`.

    Texts of similar length run together, in calls of at most `rows_per_call` texts and `tokens_per_call` tokens, padding
    included. The defaults suit the device. `parallel_calls`: if the model has several threads of the CPU, calls run
    side by side, one thread each, on a second copy of the weights (D45). A batch too small for that uses all threads.
    """

    tokenizer: str = "tokenizer.json"
    max_tokens: Count | None = None
    too_long: Literal["truncate", "refuse"] = "truncate"
    rows_per_call: Count | None = None
    tokens_per_call: Count | None = None
    parallel_calls: bool = True


class TextInput(Struct, forbid_unknown_fields=True):
    """A text. Some models take a second one (`pair`)."""

    text: str
    pair: str | None = None


class Tokens(NamedTuple):
    """One text as ids. `kinds` is the part of the pair (0 or 1) of each id."""

    ids: Array
    kinds: Array


class TextTask(ArrayHandler):
    """A model with token ids as input and, if it has such inputs, the mask and the kinds. Subclasses implement `rows`."""

    accepts: ClassVar[tuple[str, ...] | None] = ("application/json", "text/plain")
    max_batch_size: ClassVar[int | None] = 32
    defaults: ClassVar[TextOptions] = TextOptions()
    task: ClassVar[str] = "the task"
    # The output to read if the model has several and the options name none. If it has no such output, the first.
    usual_output: ClassVar[str] = ""
    sample: Any = "A text of average length, so that the worker learns what a batch of each size costs."

    def initialize(self, context: Context, /) -> None:
        """Raises `HandlerLoadError` also for unknown options, and for inputs that a text cannot fill."""
        self.options = read_options(self.defaults, context.options, task=self.task)
        super().initialize(context)
        check_output(self.runtime.outputs, self.options.output)
        self._roles = _roles([port.name for port in self.runtime.inputs], self.options.input)
        # An exported model may have a shortest and a longest text length. If both are equal, all texts are padded to it.
        self._min_tokens, maximum = next((port.limits()[0] for port in self.runtime.inputs if len(port.shape) == 1), (1, None))
        self.vocabulary = read_vocabulary(self.tokenizer_file(context), wanted=self.options.max_tokens, maximum=maximum)
        if type(self).sample is TextTask.sample:
            self.sample = self.vocabulary.beginning(self.sample)
        if self.options.too_long == "truncate":
            self.vocabulary.truncate()
        rows, tokens = _bounds(self.options, context.device)
        self.rows_per_call = rows if self.runtime.stacks else 1
        self.call_bounds = (self.rows_per_call, tokens)
        self.calls_at_once = self.open_parallel() if self.options.parallel_calls else 1
        self._padded = self._filled = 0

    def tokenizer_file(self, context: Context, /) -> Path:
        """The path of the tokenizer.json, by the option, relative to the model's folder."""
        return context.folder / self.options.tokenizer

    def preprocess(self, inputs: list[str | TextInput], /) -> list[Any]:
        texts = [value if isinstance(value, str) else _text_or_pair(value) for value in inputs]
        return [self._tokens(encoding) for encoding in self.vocabulary.encode(texts)]

    def cost(self, item: Any, /) -> float:
        """The tokens of a text, so that texts of similar length run together."""
        return len(item.ids)

    def inference(self, batch: list[Any], /) -> list[Any]:
        """One call of the model: the texts padded to the longest of them."""
        mask, outputs = self.run_texts(batch)
        self._padded, self._filled = mask.size, sum(len(tokens.ids) for tokens in batch)
        return list(self.rows(outputs, mask))

    def inference_calls(self, calls: list[list[Any]], /) -> Iterator[list[Any]]:
        """The answers of several calls, which run side by side (D45)."""
        filled = [self._fill(batch) for batch in calls]
        for (mask, _), outputs in zip(filled, self.run_parallel([feed for _, feed in filled]), strict=True):
            yield list(self.rows(outputs, mask))

    def rows(self, outputs: dict[str, Array], mask: Array) -> Sequence[Any]:
        """The answer for each text of one call. Arrays have the texts as first axis; `mask` is 1 for tokens, 0 for padding."""
        raise NotImplementedError(f"{type(self).__name__} has no rows(self, outputs, mask) method")

    def output(self, outputs: dict[str, Array]) -> Array:
        """The output that the options name, else the usual one, else the model's first."""
        return output_of(outputs, self.options.output, self.usual_output)

    def padding_ratio(self) -> float:
        """The share of padding among the tokens of the last call, from 0 to 1."""
        return 1 - self._filled / self._padded if self._padded else 0.0

    def _tokens(self, encoding: Any) -> Tokens | Failure:
        import numpy as np

        if len(encoding.ids) > self.vocabulary.limit:
            return Failure(
                f"the text has {len(encoding.ids)} tokens, the model takes {self.vocabulary.limit}", InvalidInput.kind
            )
        return Tokens(np.array(encoding.ids, dtype=np.int64), np.array(encoding.type_ids, dtype=np.int64))

    def run_texts(self, group: list[Tokens]) -> tuple[Array, dict[str, Array]]:
        """Run one call: the mask, and the model's outputs with the texts as first axis."""
        mask, feed = self._fill(group)
        return mask, self.run_arrays(feed)

    def _fill(self, group: list[Tokens]) -> tuple[Array, dict[str, Array]]:
        """The mask and the model's inputs, with the texts as first axis."""
        import numpy as np

        length = max(1, self._min_tokens, *(len(tokens.ids) for tokens in group))
        filled = {
            "ids": np.full((len(group), length), self.vocabulary.pad, dtype=np.int64),
            "mask": np.zeros((len(group), length), dtype=np.int64),
            "kinds": np.zeros((len(group), length), dtype=np.int64),
        }
        for row, tokens in enumerate(group):
            end = len(tokens.ids)
            filled["ids"][row, :end], filled["mask"][row, :end], filled["kinds"][row, :end] = tokens.ids, 1, tokens.kinds
        feed = {port.name: filled[self._roles[port.name]].astype(port.dtype, copy=False) for port in self.runtime.inputs}
        return filled["mask"], feed


def _bounds(options: TextOptions, device: str) -> tuple[int, int]:
    rows, tokens = _ON_CPU if device == "cpu" else _ON_ACCELERATOR
    return options.rows_per_call or rows, options.tokens_per_call or tokens


def _text_or_pair(value: TextInput) -> Any:
    return value.text if value.pair is None else (value.text, value.pair)


def _roles(names: Sequence[str], ids_input: str) -> dict[str, str]:
    """What each input of the model receives: ids, mask or kinds."""
    roles = {name: "ids" if name == ids_input else _ROLES.get(name) for name in names}
    unknown = [name for name, role in roles.items() if role is None]
    if unknown or "ids" not in roles.values():
        raise HandlerLoadError(
            f"the model takes {', '.join(names)}; a text task fills {', '.join(_ROLES)}. Name the input of token ids with the "
            "option input, or write a handler that fills the others"
        )
    return {name: role for name, role in roles.items() if role is not None}
