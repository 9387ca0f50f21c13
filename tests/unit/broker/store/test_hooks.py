"""How the Lua of extensions is put into the library: what it declares, and the calls that are written for it."""

from __future__ import annotations

import re

import pytest

from penstock.broker.store.hooks import POINTS, LuaExtension, dispatchers, field_tokens, words_of
from penstock.broker.store.library import assembled, lua_extensions
from penstock.errors import ConfigError
from tests.lua_files import ENGINE

COUNTS = LuaExtension(
    "counts",
    {"ends": "-- field: counted\n\n-- hook: ended\nfunction own.ended(p, serial, job) end\n"},
)
MARKS = LuaExtension(
    "marks",
    {
        "told": "-- hook: drafted\n-- mark: !\n\nfunction own.drafted(p, word) return word end\n",
        "seen": "-- hook: watched\n-- What it sees.\n\nfunction own.watched(p, mark, word) end\n",
    },
)
# Words for what only an extension knows, and the keys that it has in the store.
CAPABILITIES = re.compile(r"webhook|outbox|\bevent_|celery|foreign|\bsplit[:_]|history", re.IGNORECASE)


def test_the_engine_names_no_capability() -> None:
    named = {name: CAPABILITIES.findall(text) for name, text in ENGINE.items()}
    # A run is split into parts, by a function of the engine.
    assert {name: found for name, found in named.items() if found and name != "runs"} == {}
    assert set(named["runs"]) <= {"split_"}, "guard:split_fence and the like"


def test_an_extension_is_called_where_it_says_so_and_nowhere_else() -> None:
    text = dispatchers([COUNTS])
    assert "if job.counted then call_0(p, serial, job, state, now, todo, last) end" in text
    assert text.count("call_0(") == 1


def test_only_who_takes_part_in_submits_has_a_word() -> None:
    assert words_of([COUNTS, MARKS]) == ("marks",)
    assert field_tokens([COUNTS, MARKS])["fields.ended"] == "'counted'"
    assert field_tokens([COUNTS, MARKS])["fields.mended"] == ""


def test_a_mark_is_written_before_the_word_that_drafting_returns() -> None:
    assert "found = (found or '') .. ',!' .. word" in dispatchers([MARKS])
    assert "if mark == '!' then call_0(p, mark, word, serial, final, todo) end" in dispatchers([MARKS])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("-- hook: sometimes\nfunction own.sometimes() end\n", "at 'sometimes'; there are asked, drafted"),
        ("-- hook: drawn\n", "has not one function own.drawn"),
        ("-- hook: ended\nfunction own.ended() end\n", "declares 0 fields of a record, and needs 1"),
        ("-- field: f\n", "declares 1 fields of a record, and needs 0"),
        ("-- hook: watched\nfunction own.watched() end\n", "declares 0 marks, and needs 1"),
    ],
)
def test_what_an_extension_declares_is_checked_when_the_library_is_assembled(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        assembled(ENGINE, [LuaExtension("odd", {"file": text})])


def test_a_library_has_numbers_in_the_place_of_all_names() -> None:
    assert "@" not in assembled(ENGINE, [])
    assert "@" not in assembled(ENGINE, lua_extensions())


def test_every_point_is_one_that_the_engine_calls() -> None:
    called = {point for text in ENGINE.values() for point in re.findall(r"\bhooks\.(\w+)\(", text)}
    assert called == POINTS.keys()
