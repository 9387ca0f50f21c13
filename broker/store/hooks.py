"""The points of the store's functions at which extensions are called, and the Lua that calls them. Pure.

An engine's file calls `hooks.ended(...)` and knows no extension. An extension's file declares `-- hook: ended` and defines
`own.ended`. What stands here writes the function between the two: it looks whether the job concerns the extension, by the word
of the submit or by the field of the record, so that a job that concerns none pays a comparison for each.
"""

# D125: docs/design/extensions.md

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from penstock.errors import ConfigError

_HOOK = re.compile(r"^-- hook: (.*)$", re.MULTILINE)
_FIELD = re.compile(r"^-- field: (\w+)$", re.MULTILINE)
_MARK = re.compile(r"^-- mark: ([^\w\s,=+'])$", re.MULTILINE)


class _Asks(Enum):
    """When an extension is called at a point."""

    ALWAYS = ""
    FOR_A_WORD = "args[at + {index}] ~= ''"
    FOR_A_FIELD = "job.{field}"
    FOR_A_MARK = "mark == '{mark}'"


class _Gives(Enum):
    """What the engine does with the value that an extension returns at a point."""

    NOTHING = "{call}"
    FIRST = "local found = {call} if found then return found end"
    ANY = "found = {call} or found"
    ALL = "append(found, {call})"
    MARKS = "local word = {call} if word then found = (found or '') .. ',{mark}' .. word end"


@dataclass(frozen=True, slots=True)
class Point:
    """`takes`: the parameters, as the engine passes them. At a point for words the engine passes `p`, `args` and `at` before
    these, since the words begin at `args[at]`; and the extension gets `p` and its word.
    """

    takes: str
    asks: _Asks = _Asks.FOR_A_FIELD
    gives: _Gives = _Gives.NOTHING


# `p` is the prefix of the keys of a queue, or of runs; `job` is a table of fields, and an extension reads its own field.
POINTS = {
    # A submit. `asked` may return a status with which the job is refused; `drafted` adds to the fields of the record that
    # is to be written, and may return the text for the extension's mark among the job's watchers; `submitted` comes
    # when all is written, or refused. `call` is one table for all jobs of the call.
    "asked": Point("owner, call", _Asks.FOR_A_WORD, _Gives.FIRST),
    "drafted": Point("owner, call, record", _Asks.FOR_A_WORD, _Gives.MARKS),
    "submitted": Point("serial, owner, status, todo", _Asks.FOR_A_WORD),
    # A job that the extension watches was leased, said how far it is, or, if `final`, has ended.
    "watched": Point("p, mark, word, serial, final, todo", _Asks.FOR_A_MARK),
    # A leased job says how far it is; an attempt is over, and the job waits to run again.
    "reported": Point("p, serial, job, progress, now, todo"),
    "waiting": Point("p, serial, job, todo, code, message"),
    # The end. `ending` adds to the fields that are written with the end, `ended` comes when they are, and gathers in `todo`.
    "ending": Point("p, serial, job, state, now"),
    "ended": Point("p, serial, job, state, now, todo, last"),
    # A run that ended is to run again.
    "reopened": Point("p, serial, job"),
    # A record is to be dropped: at `dropping` true keeps it for now. At `leaving` the record leaves the lists that only it
    # names, at `dropped`, when it has gone, all others.
    "dropping": Point("p, serial, job", gives=_Gives.ANY),
    "leaving": Point("p, serial, job, owner"),
    "dropped": Point("p, serial, job, todo"),
    # A record is compared with its places: true if something was mended.
    "mended": Point("p, serial, job, now, todo", gives=_Gives.ANY),
    # An entry of a ticket list that is no ticket; and what a claim hands to the worker beside jobs. `idle`: there may be such
    # entries and nothing that this claim can take.
    "drawn": Point("p, entry", _Asks.ALWAYS),
    "claimed": Point("p, now, idle", _Asks.ALWAYS, _Gives.ALL),
}
_WORDED = {name for name, point in POINTS.items() if point.asks is _Asks.FOR_A_WORD}


@dataclass(frozen=True)
class LuaExtension:
    """The Lua files of one extension, by name. `name` is that of its word, and of its table."""

    name: str
    texts: Mapping[str, str]

    @cached_property
    def points(self) -> frozenset[str]:
        points = [point for text in self.texts.values() for point in _HOOK.findall(text)]
        for point in points:
            if point not in POINTS:
                raise ConfigError(f"the Lua of {self.name} is to be called at {point!r}; there are {', '.join(POINTS)}")
            if sum(f"\nfunction own.{point}(" in text for text in self.texts.values()) != 1:
                raise ConfigError(f"the Lua of {self.name} is to be called at {point!r} and has not one function own.{point}")
        return frozenset(points)

    @cached_property
    def field(self) -> str:
        """The field of a record by which the extension is called; empty if it has none."""
        fields = [field for text in self.texts.values() for field in _FIELD.findall(text)]
        needs_one = any(POINTS[point].asks is _Asks.FOR_A_FIELD for point in self.points)
        if len(fields) != needs_one:
            raise ConfigError(f"the Lua of {self.name} declares {len(fields)} fields of a record, and needs {int(needs_one)}")
        return "".join(fields)

    @cached_property
    def mark(self) -> str:
        """The mark of the extension among a job's watchers; empty if it watches none."""
        marks = [mark for text in self.texts.values() for mark in _MARK.findall(text)]
        if len(marks) != ("watched" in self.points):
            raise ConfigError(f"the Lua of {self.name} declares {len(marks)} marks, and needs {int('watched' in self.points)}")
        return "".join(marks)

    @property
    def has_word(self) -> bool:
        return not self.points.isdisjoint(_WORDED)


def words_of(extensions: Sequence[LuaExtension]) -> tuple[str, ...]:
    """The extensions that have a word in submits, in the order of the words."""
    return tuple(one.name for one in extensions if one.has_word)


def field_tokens(extensions: Sequence[LuaExtension]) -> dict[str, str]:
    """For `@fields.POINT` the fields that are to be loaded for a point, and for `@fields.all` those of all extensions."""
    by_point = {point: [one.field for one in extensions if point in one.points and one.field] for point in POINTS}
    by_point["all"] = [one.field for one in extensions if one.field]
    return {f"fields.{name}": ", ".join(f"'{field}'" for field in fields) for name, fields in by_point.items()}


def dispatchers(extensions: Sequence[LuaExtension]) -> str:
    """The functions of `hooks`. Each calls the extensions in their order."""
    return "\n".join(_dispatcher(name, point, extensions) for name, point in POINTS.items())


def _dispatcher(name: str, point: Point, extensions: Sequence[LuaExtension]) -> str:
    called = [one for one in extensions if name in one.points]
    lines = [_call(f"call_{index}", point, one, words_of(extensions)) for index, one in enumerate(called)]
    takes = f"p, args, at, {point.takes}" if point.asks is _Asks.FOR_A_WORD else point.takes
    bound = [f"local call_{index} = extensions.{one.name}.{name}" for index, one in enumerate(called)]
    body = "\n".join(f"  {line}" for line in _with_result(lines, point.gives))
    return "\n".join(["do", *bound, f"function hooks.{name}({takes})", body, "end", "end"])


def _call(function: str, point: Point, one: LuaExtension, words: Sequence[str]) -> str:
    index = words.index(one.name) if one.has_word else 0
    passes = f"p, args[at + {index}], {point.takes}" if point.asks is _Asks.FOR_A_WORD else point.takes
    gives = _Gives.NOTHING if point.gives is _Gives.MARKS and not one.mark else point.gives
    call = gives.value.format(call=f"{function}({passes})", mark=one.mark)
    asked = point.asks.value.format(index=index, field=one.field, mark=one.mark)
    return f"if {asked} then {call} end" if asked else call


def _with_result(lines: Sequence[str], gives: _Gives) -> Iterator[str]:
    gathers = gives in (_Gives.ANY, _Gives.ALL, _Gives.MARKS)
    if gathers:
        yield f"local found = {'{}' if gives is _Gives.ALL else 'false'}"
    yield from lines
    if gathers:
        yield "return found"
