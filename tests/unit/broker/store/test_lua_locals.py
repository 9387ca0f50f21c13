"""Lua allows 200 local names in one block, and the store's functions are one: there is room for what comes."""

from __future__ import annotations

import re
from importlib.resources import files

from penstock.broker.store.library import ORDER, SHARED

MOST_SHARED = 150
# Of the shared names and those of the largest file beside them. What a function of its own names counts apart.
MOST_IN_A_FILE = 185
_NAMES = re.compile(r"^local (?:function (\w+)|([\w, ]+))", re.MULTILINE)


def text_of(file: str) -> str:
    return (files("penstock.broker") / "functions" / f"{file}.lua").read_text("utf-8")


def names_in(file: str) -> int:
    return sum(1 if function else len(several.split(",")) for function, several in _NAMES.findall(text_of(file)))


def test_there_is_room_for_more_names_in_lua() -> None:
    shared = sum(map(names_in, SHARED)) + 1  # SUFFIX
    largest = max(names_in(file) for file in ORDER if file not in SHARED)
    assert shared <= MOST_SHARED, "put the functions of a file into a table, as outbox.lua does"
    assert shared + largest <= MOST_IN_A_FILE


def test_no_file_calls_a_function_that_another_one_keeps_for_itself() -> None:
    # Such a call fails only when it is made: Lua takes the name for a global one, and finds none.
    code = {file: re.sub(r"--.*", "", text_of(file)) for file in ORDER}
    defined = {file: set(re.findall(r"local function (\w+)", text)) for file, text in code.items()}
    called = {file: set(re.findall(r"(?<![\w.:'])(\w+)\(", text)) for file, text in code.items()}
    kept = {name for file in ORDER if file not in SHARED for name in defined[file]}
    shared = {name for file in SHARED for name in re.findall(r"\w+", " ".join(sum(_NAMES.findall(code[file]), ())))}
    assert {file: found for file in ORDER if (found := called[file] & kept - shared - defined[file])} == {}
