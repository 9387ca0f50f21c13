"""The words of a text, as TorchServe's handlers for texts cut it. Pure.

A vocabulary was made with these rules, so each of them shows in the answers.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterator, Sequence

_REFERENCE = re.compile(r"&(?:[a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")
# A word with an apostrophe within. It is looked for at the beginnings of words only, so that no text takes long.
_SHORT = re.compile(r"(?<![A-Za-z])[A-Za-z]+'[A-Za-z]+|'cause", re.IGNORECASE)
_MARKS = re.compile(r"(['.,()!?])")
_GAPS = re.compile(r"<br />|[;:]")
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


def without_markup(text: str) -> str:
    """Without tags and character references of HTML."""
    return "\n".join("".join(_REFERENCE.sub("", part) for part in _outside_tags(line)) for line in text.split("\n"))


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
    spaced = _MARKS.sub(r" \1 ", text.lower().replace('"', ""))
    return _GAPS.sub(" ", spaced).split()


def ngrams(words: Sequence[str], longest: int) -> Iterator[str]:
    """The words, then each two neighbours, and so on up to `longest`."""
    for size in range(1, longest + 1):
        yield from (" ".join(words[start : start + size]) for start in range(len(words) - size + 1))


def _outside_tags(line: str) -> Iterator[str]:
    """The text between the tags. An unclosed `<` is not a tag. No pattern is used, which would be slow for a thousand `<`."""
    at = 0
    while (start := line.find("<", at)) >= 0 and (end := line.find(">", start)) >= 0:
        yield line[at:start]
        at = end + 1
    yield line[at:]


def _long_form(match: re.Match[str]) -> str:
    short = match[0]
    full = _CONTRACTIONS.get(short.lower())
    if full is None:
        return short
    return full if short.startswith("'") else short[0] + full[1:]
