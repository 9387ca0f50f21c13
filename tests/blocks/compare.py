"""Shown output beside real output: what differs from run to run is masked, and `...` stands for anything."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

# What is masked, in this order; each pattern becomes its word in both texts.
_MASKS = [
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?(Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?\b"), "<time>"),
    # The whole of a worker's name, before a part of it is taken for an id.
    (re.compile(r"(penstock@)[\w.-]+"), r"\1<host>"),
    (re.compile(r"\b01[0-9a-hjkmnp-tv-z]{2}\.\.\.|\b01[0-9a-hjkmnp-tv-z]{6,24}\b"), "<id>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{6,64}\b"), "<id>"),
    (re.compile(r"\b(pid|process)([ =:]+)\d+"), r"\1\2<pid>"),
    (re.compile(r"\b(127\.0\.0\.1|localhost):[3-6]\d{4}\b"), r"\1:<port>"),
    (re.compile(r"\b\d+(\.\d+)? (us|ms|s|min)\b"), "<duration>"),
]
# Members with these endings are measured: in JSON their numbers match any number.
_MEASURED = ("_s", "_bytes")
_FOLDER = re.compile(r"/home/you\b(/demo\b)?")


def masked(text: str, folder: str = "") -> str:
    """Return the text with its times, ids, ports, durations and the page's folder masked, without needless spaces."""
    if folder:
        text = text.replace(folder, "<folder>")
    text = _FOLDER.sub("<folder>", text.replace("\r\n", "\n"))
    for pattern, word in _MASKS:
        text = pattern.sub(word, text)
    lines = [re.sub(r"\s+", " ", line.rpartition("\r")[2]).strip() for line in text.split("\n")]
    return "\n".join(lines).strip("\n")


def text_difference(shown: str, got: str, folder: str = "", *, goes_on: bool = False) -> str:
    """Return how the real output differs from the shown one, as a diff; empty if they agree.

    `...` in a line matches any characters there, a line that is `...` alone any number of lines. `goes_on`: the command still
    runs, so lines may follow.
    """
    expected, real = masked(shown, folder), masked(got, folder)
    pattern = "".join(_pattern_of(line) for line in expected.split("\n"))
    if re.fullmatch(pattern + (r"(?:.*\n)*" if goes_on else ""), real + "\n"):
        return ""
    return "\n".join(difflib.unified_diff(expected.split("\n"), real.split("\n"), "shown", "got", lineterm="", n=100))


def _pattern_of(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*?"
    return r".*".join(re.escape(part) for part in line.split("...")) + r"\n"


def json_difference(shown: Any, got: Any, place: str = "$") -> str:
    """Return the first place at which the real JSON lacks what is shown; empty if it has everything.

    `"..."` stands for any value, at the end of a list for any further ones; numbers with a point, and those of members in
    seconds or bytes, match any number; strings are masked as texts are. Members that are not shown may be there.
    """
    if shown == "...":
        return ""
    if isinstance(shown, dict) and isinstance(got, dict):
        return _first(_member_difference(name, value, got, place) for name, value in shown.items() if name != "...")
    if isinstance(shown, list) and isinstance(got, list):
        return _list_difference(shown, got, place)
    return "" if _is_same(shown, got) else f"{place}: shown {json.dumps(shown)}, got {json.dumps(got)}"


def _member_difference(name: str, value: Any, got: dict[str, Any], place: str) -> str:
    if name.endswith(_MEASURED) and isinstance(value, int):
        value = float(value)
    if name not in got:
        return f"{place}: '{name}' is shown, got only {', '.join(got)}"
    return json_difference(value, got[name], f"{place}.{name}")


def _list_difference(shown: list[Any], got: list[Any], place: str) -> str:
    is_open = bool(shown) and shown[-1] == "..."
    entries = shown[:-1] if is_open else shown
    if len(got) < len(entries) or (len(got) > len(entries) and not is_open):
        return f"{place}: {len(entries)} entries are shown, got {len(got)}"
    return _first(
        json_difference(one, other, f"{place}[{at}]") for at, (one, other) in enumerate(zip(entries, got, strict=False))
    )


def _is_same(shown: Any, got: Any) -> bool:
    if isinstance(shown, str) and isinstance(got, str):
        return not text_difference(shown, got)
    if isinstance(shown, float):
        return isinstance(got, (int, float)) and not isinstance(got, bool)
    return type(shown) is type(got) and shown == got


def _first(differences: Any) -> str:
    return next((difference for difference in differences if difference), "")
