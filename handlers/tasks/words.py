"""A model's vocabulary, from its tokenizer.json by the tokenizers library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError

# The longest input of BERT and its kin, where neither tokenizer.json nor the model says another.
_USUAL_MAX_TOKENS = 512
# What stands for a word left out, the first that the vocabulary has.
_BLANKS = ("[MASK]", "<mask>", "[UNK]", "<unk>", "[PAD]", "<pad>")


@dataclass(frozen=True, slots=True)
class Words:
    """Texts to ids. `pad` fills up short texts, `blank` stands for a word left out, `special` mark beginnings and ends.

    The model takes `limit` tokens; longer texts stay as they are until `cut` is called. `side`: where the file has them cut.
    """

    tokenizer: Any
    limit: int
    pad: int
    blank: int
    special: frozenset[int]
    side: Mapping[str, str]

    def encode(self, texts: Sequence[Any]) -> list[Any]:
        """One encoding per text, or per pair of texts."""
        found: list[Any] = self.tokenizer.encode_batch(list(texts))
        return found

    def beginning(self, text: str) -> str:
        """As much of the text as the limit has room for. Before `cut`."""
        ends = range(len(text), 0, -1)
        return next((text[:end] for end in ends if len(self.tokenizer.encode(text[:end]).ids) <= self.limit), "")

    def cut(self) -> None:
        """From now on no text has more than `limit` tokens: the rest goes, from the side that the file names."""
        self.tokenizer.enable_truncation(self.limit, **self.side)

    def name(self, token: int) -> str:
        return str(self.tokenizer.id_to_token(token))


def read_words(file: Path, *, wish: int | None, most: int | None) -> Words:
    """The vocabulary in `file`, for texts of up to `wish` tokens (None: as it says), and of no more than `most`.

    Raises `HandlerLoadError` without the library or the file, for a file of another kind, and for a limit that leaves no room.
    """
    tokenizer = _opened(file)
    own, padding = tokenizer.truncation or {}, tokenizer.padding
    limit = _limit(wish or own.get("max_length"), most)
    marks = tokenizer.num_special_tokens_to_add(False)
    if limit <= marks:
        raise HandlerLoadError(
            f"a text of {limit} tokens has no room for a word: {file.name} adds {marks} of its own; raise max_tokens"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pad = int(padding["pad_id"]) if padding else 0
    blanks = (tokenizer.token_to_id(name) for name in _BLANKS)
    special = frozenset(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)
    # Not its stride: that is the overlap of the parts of a long text, of which only the first is run.
    side = {name: own[name] for name in ("strategy", "direction") if name in own}
    return Words(tokenizer, limit, pad, next((token for token in blanks if token is not None), pad), special, side)


def _limit(wanted: int | None, most: int | None) -> int:
    """What is wanted, as far as the model takes so much; else as much as it takes."""
    if wanted is None:
        return most or _USUAL_MAX_TOKENS
    return min(wanted, most or wanted)


def need_tokenizer(file: Path) -> None:
    """Raises `HandlerLoadError` if the file is not there."""
    if not file.exists():
        raise HandlerLoadError(
            f"there is no tokenizer {file}; put the model's tokenizer.json next to it, or set the option tokenizer"
        )


def _opened(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise HandlerLoadError(
            "text tasks need tokenizers, which is not installed; run: pip install 'penstock[text]'"
        ) from error
    need_tokenizer(file)
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        # The library raises plain Exception for a file that it cannot read.
        raise HandlerLoadError(f"{file} is no tokenizer.json of the tokenizers library: {error}") from error
