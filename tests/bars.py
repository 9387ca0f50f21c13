"""The figures that say how small the engine is, each with the most it may be (`make house` prints them).

A limit is lowered with each change that makes its figure smaller; the goal is what the house is to reach
(docs/design/extensions.md).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests import house
from tests.pages import cli_page
from tests.pages.setting_rows import setting_rows

# The client is no part of it: its methods and parameters are the words of the API, those of our extensions too (D135).
ENGINE = ("core", "broker", "embedded", "workers", "handlers", "gateway", "runs", "cli")
CLIENT = ("client",)
COUNTED = ("core", "broker", "workers", "gateway")
LONG_FILE_LINES = 350
# Names of capabilities. `split` alone is also what happens to texts and runs, `.pipeline(` is redis-py's, and `autoscale` an
# option of Celery's.
CAPABILITIES = re.compile(
    r"openai|\boip\b|open_inference|replicate(?!d)|\bcog\b|torchserve|celery_client|webhook|outbox|canar|shadow|\bsplits\b"
    r"|(?<!\.)pipeline|autoscal(?!e\b)|\bhistory\b",
    re.IGNORECASE,
)
# The modules whose imports are the start of a process on a job's way: what they reach at import must be read and loaded.
ENTRIES = {
    "predict": "penstock.gateway.jobs.predict",
    "slot": "penstock.workers.slot.slot",
    "child": "penstock.workers.child.__main__",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure of the tree, the most it may be now, and the most it is to be."""

    name: str
    value: int
    limit: int
    goal: int

    def __str__(self) -> str:
        return f"{self.name:44} {self.value:6} (at most {self.limit}, goal {self.goal})"


def bars(found: Sequence[house.Module]) -> list[Bar]:
    lines = sum(one.lines for one in found if one.path.parts[0] in COUNTED)
    long = [one for one in found if one.lines > LONG_FILE_LINES and one.path.as_posix() not in house.TABLES]
    return [
        Bar("modules that `predict` imports", len(closure(found, ENTRIES["predict"])), 24, 50),
        Bar("modules that `slot` imports", len(closure(found, ENTRIES["slot"])), 41, 50),
        Bar("modules that `child` imports", len(closure(found, ENTRIES["child"])), 50, 50),
        Bar("imports of extensions by the engine", len(engine_imports(found)), 0, 0),
        Bar("lines of the engine that name a capability", len(list(named(found))), 0, 0),
        Bar("lines of the client that name a capability", len(list(named(found, CLIENT))), 58, 58),
        Bar("lines of core, broker, workers and gateway", lines, 45_949, 46_000),
        Bar(f"files over {LONG_FILE_LINES} lines", len(long), 3, 5),
        Bar("commands", len(commands()), 54, 55),
        Bar("settings", len(setting_rows()), 165, 165),
    ]


def commands() -> list[str]:
    """Return every command that does something: those without further verbs, and groups that run by themselves."""
    return [one.words for one in cli_page.commands() if one.words and (not one.is_group or one.runs_alone)]


def closure(found: Sequence[house.Module], entry: str) -> set[str]:
    """Return our modules that an import of `entry` imports, itself included."""
    known = {one.name: one for one in found}
    reached, todo = {entry}, [entry]
    for name in todo:
        for imported in _at_import(known[name]):
            module = _module_of(imported, known)
            if module and module not in reached:
                reached.add(module)
                todo.append(module)
    return reached


def engine_imports(found: Sequence[house.Module]) -> set[tuple[str, str]]:
    """Return who in the engine imports what of which extension's module."""
    engine = [one for one in found if one.path.parts[0] in ENGINE + CLIENT]
    known = {one.name: one for one in found}
    imported = ((one, name) for one in engine for name in one.imports if name.startswith("penstock.extensions."))
    return {(one.name, _module_of(name, known) or name) for one, name in imported}


def named(found: Sequence[house.Module], folders: Sequence[str] = ENGINE) -> Iterator[str]:
    """Yield the places in these folders that name a capability."""
    for one in found:
        if one.path.parts[0] in folders:
            for number, line in enumerate((house.ROOT / one.path).read_text().splitlines(), 1):
                if CAPABILITIES.search(line):
                    yield f"{one.path}:{number}"


def _at_import(one: house.Module) -> Iterator[str]:
    for node in one.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _module_of(name: str, known: dict[str, house.Module]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name
