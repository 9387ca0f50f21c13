"""The Redis Function library, assembled from Lua files, named by its hash, and loaded into a store that lacks it.

The hash is part of every function's name, so two versions of penstock run side by side on one Redis during a rolling deploy.
All processes of a deployment have the same extensions with functions installed, and so the same library.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from penstock.broker.store import hooks, positions
from penstock.broker.store.hooks import LuaExtension
from penstock.errors import ConfigError
from penstock.extension import Extension, installed

# The engine's files. D10 (docs/design/store.md)
ORDER = (
    "lib",
    "gather",
    "lines",
    "ending",
    "turns",
    "submit",
    "claim",
    "finish",
    "retry",
    "release",
    "hand_over",
    "extend",
    "report",
    "sweep",
    "cancel",
    "forget",
    "dismiss",
    "purge",
    "lists",
    "reconcile",
    "read",
    "retire",
    "presence",
    "swap",
    "keys",
    "audit",
    "runs",
)


# Lua allows 200 local names in one block, so what a file defines for itself alone stays in a block of its own.
# tests/unit/broker/store/test_lua_locals.py counts them.
SHARED = ("lib", "gather", "lines", "ending", "turns")

# A name of a position, or of the fields of a point; Lua itself has no `@`.
_TOKEN = re.compile(r"@(\w+\.\w+)")


# A function that writes nothing is registered so; what another one writes may be lost where its file declares it.
_READS = re.compile(r"^register\('(\w+)', [\w.]+, \{[^}]*'no-writes'|^-- unwaited: (\w+)", re.MULTILINE)


def engine_files() -> dict[str, str]:
    folder = files("penstock.broker") / "functions"
    return {name: (folder / f"{name}.lua").read_text("utf-8") for name in ORDER}


@cache
def lua_extensions() -> tuple[LuaExtension, ...]:
    """The extensions that declare Lua files, in the order of their names. Raises `ConfigError`."""
    return tuple(LuaExtension(one.name, _files_of(one)) for one in installed() if one.functions)


def _files_of(extension: Extension) -> dict[str, str]:
    package, _, folder = extension.functions.partition(":")
    place = files(package) / folder
    entries = sorted(place.iterdir(), key=lambda entry: entry.name) if place.is_dir() else []
    if texts := {entry.name.removesuffix(".lua"): entry.read_text("utf-8") for entry in entries if entry.name.endswith(".lua")}:
        return texts
    raise ConfigError(
        f"extension {extension.name!r} declares functions in {extension.functions}, where no Lua file is installed",
        hint="A wheel has them only if its build declares them: [tool.setuptools.package-data] in pyproject.toml.",
    )


@cache
def words() -> tuple[str, ...]:
    """The names of the words that stand behind a job's own arguments in a submit."""
    return hooks.words_of(lua_extensions())


@cache
def body() -> str:
    return assembled(engine_files(), lua_extensions())


@cache
def unwaited() -> frozenset[str]:
    """The functions whose answers need not wait until a replica has what they wrote."""
    return frozenset(reading or declared for reading, declared in _READS.findall(body()))


def assembled(engine: Mapping[str, str], extensions: Sequence[LuaExtension]) -> str:
    """The engine's files, those of the extensions, the calls between them; and numbers in the place of names."""
    texts = [text if name in SHARED else f"do\n{text}end" for name, text in engine.items()]
    texts += ["local extensions = {}", *map(_block, extensions), hooks.dispatchers(extensions)]
    numbers = positions.tokens(len(hooks.words_of(extensions))) | hooks.field_tokens(extensions)
    return _TOKEN.sub(lambda token: numbers[token[1]], "\n".join(texts))


def _block(extension: LuaExtension) -> str:
    """The files of one extension share the table `own`."""
    inner = "\n".join(f"do\n{text}end" for text in extension.texts.values())
    return f"do\nlocal own = {{}}\nextensions.{extension.name} = own\n{inner}\nend"


def suffix_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def library(text: str | None = None) -> tuple[str, str]:
    """Return the suffix that every function name has, and the source of the library."""
    text = body() if text is None else text
    suffix = suffix_of(text)
    return suffix, f"#!lua name=penstock_{suffix}\nlocal SUFFIX = '{suffix}'\n{text}"
