"""Lua allows 200 local names in one block, and the store's functions are one: there is room for what comes."""

from __future__ import annotations

import re

from penstock.broker.store.library import SHARED, lua_extensions
from tests.lua_files import ENGINE, LUA

MOST_SHARED = 150
# Of the shared names and those of the largest file beside them. What a function of its own names counts apart.
MOST_IN_A_FILE = 185
# `SUFFIX` and `extensions`; in the files of an extension also `own`.
MORE_SHARED = 3
_NAMES = re.compile(r"^local (?:function (\w+)|([\w, ]+))", re.MULTILINE)
_OWN = re.compile(r"\bown\.(\w+)")
_OWN_DEFINED = re.compile(r"^(?:function )?own\.(\w+)(?:\(| =)", re.MULTILINE)


def names_in(text: str) -> int:
    return sum(1 if function else len(several.split(",")) for function, several in _NAMES.findall(text))


def code_of(text: str) -> str:
    return re.sub(r"--.*", "", text)


def test_there_is_room_for_more_names_in_lua() -> None:
    shared = sum(names_in(ENGINE[file]) for file in SHARED) + MORE_SHARED
    largest = max(names_in(text) for file, text in LUA.items() if file not in SHARED)
    assert shared <= MOST_SHARED, "put the functions of a file into a table, as runs.lua does"
    assert shared + largest <= MOST_IN_A_FILE


def test_no_file_calls_a_function_that_another_one_keeps_for_itself() -> None:
    # Such a call fails only when it is made: Lua takes the name for a global one, and finds none.
    code = {file: code_of(text) for file, text in LUA.items()}
    defined = {file: set(re.findall(r"local function (\w+)", text)) for file, text in code.items()}
    called = {file: set(re.findall(r"(?<![\w.:'])(\w+)\(", text)) for file, text in code.items()}
    kept = {name for file in LUA if file not in SHARED for name in defined[file]}
    shared = {name for file in SHARED for name in re.findall(r"\w+", " ".join(sum(_NAMES.findall(code[file]), ())))}
    assert {file: found for file in LUA if (found := called[file] & kept - shared - defined[file])} == {}


def test_the_files_of_an_extension_name_nothing_in_its_table_that_is_not_there() -> None:
    for extension in lua_extensions():
        text = code_of("\n".join(extension.texts.values()))
        assert set(_OWN.findall(text)) <= set(_OWN_DEFINED.findall(text)), extension.name
        assert not re.search(r"\blocal own\b", text), f"{extension.name} hides its table"
