"""The words of a text, as TorchServe's handlers for texts cut it. Pure.

A vocabulary was made with these rules, so each of them shows in the answers.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterator, Sequence

CLEANUP_REGEX = re.compile(r"<[^\n]*?>|&(?:[a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

# Which words have each ending, and what the ending is short for.
_ENDINGS = {
    "n't": (
        "could would should might must need is are was were do does did has have had may ought dare",
        "not",
    ),
    "'s": ("he she it that there what where who when why how", "is"),
    "'re": ("you we they what", "are"),
    "'ve": ("i you we they what where who when why could would should might must to so", "have"),
    "'ll": ("i you he she it we they what who how", "will"),
    "'d": ("i you he she it we they that there", "would"),
    "'m": ("i", "am"),
}
_CONTRACTIONS = {
    **{word + ending: f"{word} {meaning}" for ending, (words, meaning) in _ENDINGS.items() for word in words.split()},
    "where'd": "where did",
    "how'd": "how did",
    "let's": "let us",
    "so's": "so as",
    "can't": "cannot",
    "won't": "will not",
    "shan't": "shall not",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "y'all": "you all",
    # TorchServe puts the first letter of the short form before the rest of the long one.
    "ain't": "as not",
    "'cause": "ecause",
}
_SHORT = re.compile(
    "|".join(rf"(?<!\w){re.escape(one)}" for one in sorted(_CONTRACTIONS, key=len, reverse=True)), re.IGNORECASE
)


def without_markup(text: str) -> str:
    """Without tags and character references of HTML."""
    return CLEANUP_REGEX.sub("", text)


def expanded(text: str) -> str:
    """Short forms in full, each with its first letter as it was, and then without apostrophes."""
    return _SHORT.sub(_long_form, text).replace("'", "")


def without_accents(text: str) -> str:
    """The letters and signs of ASCII that remain if accents are taken off."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


def without_punctuation(text: str) -> str:
    return text.translate(_PUNCTUATION)


def words_of(text: str) -> list[str]:
    """Lower-case words and marks: . , ( ) ! ? and the apostrophe are words of their own; " ; : separate or vanish."""
    spaced = re.sub(r"(['.,()!?])", r" \1 ", text.lower().replace('"', ""))
    return re.sub(r"<br />|[;:]", " ", spaced).split()


def ngrams(words: Sequence[str], longest: int) -> Iterator[str]:
    """The words, then each two neighbours, and so on up to `longest`."""
    for size in range(1, longest + 1):
        yield from (" ".join(words[start : start + size]) for start in range(len(words) - size + 1))


def _long_form(found: re.Match[str]) -> str:
    short = found[0]
    full = _CONTRACTIONS[short.lower()]
    return full if short.startswith("'") else short[0] + full[1:]
