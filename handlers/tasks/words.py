"""A model's vocabulary, from its tokenizer.json by the tokenizers library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError

# The longest input of BERT and its kin; tokenizer.json says it where it knows better.
_USUAL_MAX_TOKENS = 512
# What stands for a word left out, the first that the vocabulary has.
_BLANKS = ("[MASK]", "<mask>", "[UNK]", "<unk>", "[PAD]", "<pad>")


@dataclass(frozen=True, slots=True)
class Words:
    """Texts to ids. `pad` fills up short texts, `blank` stands for a word left out, `special` mark beginnings and ends.

    No text has more than `limit` tokens, unless it is to be refused for that.
    """

    tokenizer: Any
    limit: int
    pad: int
    blank: int
    special: frozenset[int]

    def encode(self, texts: Sequence[Any]) -> list[Any]:
        """One encoding per text, or per pair of texts."""
        found: list[Any] = self.tokenizer.encode_batch(list(texts))
        return found

    def name(self, token: int) -> str:
        return str(self.tokenizer.id_to_token(token))


def read_words(file: Path, *, wish: int | None, most: int | None, cut: bool) -> Words:
    """The vocabulary in `file`, for texts of up to `wish` tokens (None: as it says), at most `most`; `cut`: the rest goes.

    Raises `HandlerLoadError` without the library or the file, and for a file of another kind.
    """
    tokenizer = _opened(file)
    own = tokenizer.truncation["max_length"] if tokenizer.truncation else _USUAL_MAX_TOKENS
    limit = min(wish or most or own, most or wish or own)
    if cut:
        tokenizer.enable_truncation(limit)
    else:
        tokenizer.no_truncation()
    padding = tokenizer.padding
    tokenizer.no_padding()
    pad = int(padding["pad_id"]) if padding else 0
    blanks = (tokenizer.token_to_id(name) for name in _BLANKS)
    special = frozenset(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)
    return Words(tokenizer, int(limit), pad, next((token for token in blanks if token is not None), pad), special)


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
