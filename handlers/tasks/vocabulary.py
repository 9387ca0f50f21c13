"""A model's vocabulary: its tokenizer.json, read by the tokenizers library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.distribution import install_hint
from penstock.errors import HandlerLoadError

# The longest input of BERT models, for when neither tokenizer.json nor the model states one.
_USUAL_MAX_TOKENS = 512
# Tokens that can replace a word that is left out; the first that the vocabulary has is used.
_BLANKS = ("[MASK]", "<mask>", "[UNK]", "<unk>", "[PAD]", "<pad>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Turns texts into ids. `pad` fills short texts, `blank` replaces a word, `special` tokens mark beginnings and ends.

    The model takes `limit` tokens. Longer texts are not cut unless `truncate` was called. `truncation` is how the file cuts.
    """

    tokenizer: Any
    limit: int
    pad: int
    blank: int
    special: frozenset[int]
    truncation: Mapping[str, str]

    def encode(self, texts: Sequence[Any]) -> list[Any]:
        """One encoding per text, or per pair of texts."""
        encodings: list[Any] = self.tokenizer.encode_batch(list(texts))
        return encodings

    def beginning(self, text: str) -> str:
        """The longest beginning of the text that fits the limit. Call it before `truncate`."""
        ends = range(len(text), 0, -1)
        return next((text[:end] for end in ends if len(self.tokenizer.encode(text[:end]).ids) <= self.limit), "")

    def truncate(self) -> None:
        """From now on cut texts to `limit` tokens, at the side that the file names."""
        self.tokenizer.enable_truncation(self.limit, **self.truncation)

    def name(self, token: int) -> str:
        return str(self.tokenizer.id_to_token(token))


def read_vocabulary(file: Path, *, wanted: int | None, maximum: int | None) -> Vocabulary:
    """The vocabulary in `file`, for texts of up to `wanted` tokens (None: as the file says), but at most `maximum`.

    Raises `HandlerLoadError` without the library or the file, for another kind of file, and for a limit with no room for words.
    """
    tokenizer = _opened(file)
    own, padding = tokenizer.truncation or {}, tokenizer.padding
    limit = _limit(wanted or own.get("max_length"), maximum)
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
    # Without the stride, the overlap between the parts of a long text: only the first part is run.
    truncation = {name: own[name] for name in ("strategy", "direction") if name in own}
    return Vocabulary(tokenizer, limit, pad, next((token for token in blanks if token is not None), pad), special, truncation)


def _limit(wanted: int | None, maximum: int | None) -> int:
    """The wanted number of tokens, but at most the model's maximum. `wanted` None: the maximum."""
    if wanted is None:
        return maximum or _USUAL_MAX_TOKENS
    return min(wanted, maximum or wanted)


def require_tokenizer(file: Path) -> None:
    """Raises `HandlerLoadError` if the file is missing."""
    if not file.exists():
        raise HandlerLoadError(
            f"there is no tokenizer {file}; put the model's tokenizer.json next to it, or set the option tokenizer"
        )


def _opened(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise HandlerLoadError(f"text tasks need tokenizers, which is not installed; run: {install_hint('text')}") from error
    require_tokenizer(file)
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        # The library raises plain Exception for a file that it cannot read.
        raise HandlerLoadError(f"{file} is not a tokenizer.json of the tokenizers library: {error}") from error
