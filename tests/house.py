"""This script measures how the source tree is filed: `python -m tests.house`, or `make house`.

The script prints one row per folder: its modules, their lines, its longest function, and its imports against the layers, which
are those of import-linter in pyproject.toml. Below the rows stand the faults that `tests/unit/test_house.py` keeps at zero.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = (
    "core",
    "broker",
    "handlers",
    "client",
    "workers",
    "gateway",
    "extensions",
    "runs",
    "embedded",
    "loadtest",
    "tune",
    "cli",
    "benchmarks",
)
# These folders define other servers and archives: their scripts run in environments of their own.
FOREIGN = re.compile(r"benchmarks/(peers|torchserve/models)/\w+/")
MOST_MODULES = 16
MOST_FUNCTION_LINES = 40
MOST_FILE_LINES = 400
# A table is read by looking one row up, and a file of records by looking up one record, so their length costs a reader nothing.
TABLES = {
    "broker/records.py": "what goes into the store's transitions and comes out of them, one frozen record each",
    "broker/store/ops.py": "the operations of the store, one function each",
    "broker/store/replies.py": "what each reply of the store means, one function each",
    "core/job.py": "the words and records of a job",
    "core/model_spec.py": "the records of a model and of the workers that serve it",
    "gateway/asgi/problems.py": "the errors of a gateway, each with its class, status and title",
}
LEAST_MODULE_LINES = 40
MOST_SMALL_MODULES = 10
MOST_COLUMNS = 120
# The other extensions that an extension may import.
BESIDE = {
    "openai": {"webhooks"},
    "replicate": {"webhooks"},
    "torchserve": {"oip", "pipelines"},
    "webhooks": {"openai", "replicate"},
}


@dataclass(frozen=True)
class Module:
    """One module of the project. `name` is the name by which code imports the module; `path` is relative to the root."""

    path: Path
    name: str
    lines: int
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.path.parent.as_posix()

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(_statements(self.tree))

    @property
    def functions(self) -> Iterator[tuple[str, int]]:
        """Yield name and lines of each function's body. The signature does not count: a command's options are one per line."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or 0) - node.body[0].lineno + 1

    @property
    def classes(self) -> Iterator[str]:
        return (node.name for node in self.nodes if isinstance(node, ast.ClassDef))

    @property
    def imports(self) -> Iterator[str]:
        """Yield the full names that the module imports when it is used; imports for type checkers alone are left out."""
        hidden = {id(child) for node in self.nodes if _is_type_checking(node) for child in _statements(node)}
        for node in self.nodes:
            if id(node) in hidden:
                continue
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)


def _statements(top: ast.AST) -> Iterator[ast.AST]:
    """Yield this node and all statements in it. They hold all that is counted here, and are a tenth of the nodes."""
    todo = [top]
    for node in todo:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo.extend(getattr(node, name, ()))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def modules() -> list[Module]:
    """Return every module of the project except the packages' own `__init__`."""
    paths = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py")) if path.name != "__init__.py"]
    return [_module(path.relative_to(ROOT)) for path in paths if not FOREIGN.match(path.relative_to(ROOT).as_posix())]


def _module(path: Path) -> Module:
    text = (ROOT / path).read_text()
    parts = path.with_suffix("").parts
    package = () if parts[0] == "benchmarks" else ("penstock",)
    return Module(path, ".".join(package + (parts[1:] if parts[0] == "core" else parts)), text.count("\n"), ast.parse(text))


@dataclass(frozen=True)
class Floors:
    """One `layers` contract: a layer may import lower ones, and siblings in an independent layer never import each other."""

    container: str
    layers: Sequence[Sequence[str]]
    independent: Sequence[bool]

    def place(self, name: str) -> tuple[int, str] | None:
        """Return the module's layer and its entry in that layer; None if the contract does not list the module."""
        for floor, rooms in enumerate(self.layers):
            for room in rooms:
                whole = f"{self.container}.{room}"
                if name == whole or name.startswith(f"{whole}."):
                    return floor, room
        return None

    def is_back(self, importer: str, imported: str) -> bool:
        ours, theirs = self.place(importer), self.place(imported)
        if ours is None or theirs is None or ours == theirs:
            return False
        return theirs[0] < ours[0] or (theirs[0] == ours[0] and self.independent[ours[0]])


def floors() -> list[Floors]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return [
        _floors(container, one["layers"]) for one in contracts if one["type"] == "layers" for container in one["containers"]
    ]


def _floors(container: str, layers: Sequence[str]) -> Floors:
    rooms = [[room.strip(" ()") for room in re.split(r"[|:]", layer)] for layer in layers]
    return Floors(container, rooms, [":" not in layer for layer in layers])


def arrows_back(found: Sequence[Module]) -> list[tuple[Module, str]]:
    """Return the imports that go against the layers: who imports, and what."""
    rules = floors()
    return [(one, name) for one in found for name in one.imports if any(rule.is_back(one.name, name) for rule in rules)]


def undeclared(found: Sequence[Module]) -> list[tuple[Module, str]]:
    """Return the imports of one extension by another that `BESIDE` does not declare."""
    inside = [one for one in found if one.path.parts[0] == "extensions"]
    imported = [(one, name) for one in inside for name in one.imports if name.startswith("penstock.extensions.")]
    return [
        (one, name)
        for one, name in imported
        if name.split(".")[2] not in {one.path.parts[1], *BESIDE.get(one.path.parts[1], ())}
    ]


def shared_class_names(found: Sequence[Module]) -> dict[str, int]:
    """Return the class names that stand for more than one thing."""
    counted = Counter(name for one in found for name in one.classes)
    return {name: count for name, count in counted.items() if count > 1}


def small_modules(found: Sequence[Module]) -> list[Module]:
    """Return the small modules. A `__main__` is small wherever it only calls what it starts."""
    return [one for one in found if one.lines < LEAST_MODULE_LINES and one.path.name != "__main__.py"]


def wide_lines() -> list[str]:
    """Return the lines of Markdown prose that are too long; tables, code and lines without a place to break are left out."""
    return [f"{page.relative_to(ROOT)}:{number}" for page in sorted(_pages()) for number in _wide_in(page.read_text())]


def _pages() -> Iterator[Path]:
    for folder, folders, files in os.walk(ROOT):
        # An environment holds tens of thousands of files.
        folders[:] = [name for name in folders if name not in {".git", ".venv", "build", "node_modules"}]
        yield from (Path(folder, name) for name in files if name.endswith(".md"))


def _wide_in(text: str) -> Iterator[int]:
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "<!-- run")) or (in_code and line.strip() == "-->"):
            in_code = not in_code
        elif not in_code and len(line) > MOST_COLUMNS and not line.startswith("|") and " " in line.strip()[:MOST_COLUMNS]:
            yield number


def faults(found: Sequence[Module]) -> list[str]:
    """Return what is out of order, one sentence per fault."""
    return [
        *_sizes(found),
        *(f"{one.path}: imports {name} against the floors" for one, name in arrows_back(found)),
        *(f"{one.path}: imports {name} of another extension" for one, name in undeclared(found)),
        *(f"class {name}: {count} meanings" for name, count in shared_class_names(found).items()),
        *(f"{place}: more than {MOST_COLUMNS} columns" for place in wide_lines()),
    ]


def _sizes(found: Sequence[Module]) -> Iterator[str]:
    for folder, count in Counter(one.folder for one in found).items():
        if count > MOST_MODULES:
            yield f"{folder}: {count} modules, more than {MOST_MODULES}"
    for one in found:
        if one.lines > MOST_FILE_LINES and one.path.as_posix() not in TABLES:
            yield f"{one.path}: {one.lines} lines, more than {MOST_FILE_LINES}"
        for name, lines in one.functions:
            if lines > MOST_FUNCTION_LINES:
                yield f"{one.path}: {name} has {lines} lines, more than {MOST_FUNCTION_LINES}"
    small = [one.path.as_posix() for one in small_modules(found)]
    if len(small) > MOST_SMALL_MODULES:
        yield f"modules under {LEAST_MODULE_LINES} lines: {len(small)}, more than {MOST_SMALL_MODULES}: {', '.join(small)}"


def rows(found: Sequence[Module]) -> Iterator[str]:
    yield f"{'folder':28} {'modules':>7} {'lines':>6} {'longest function':>16} {'arrows back':>11}"
    back = Counter(one.folder for one, _ in arrows_back(found))
    for folder in sorted({one.folder for one in found}):
        inside = [one for one in found if one.folder == folder]
        longest = max((lines for one in inside for _, lines in one.functions), default=0)
        yield f"{folder:28} {len(inside):7} {sum(one.lines for one in inside):6} {longest:16} {back[folder]:11}"


def main() -> int:
    found = modules()
    print(*rows(found), sep="\n")
    from tests.bars import bars  # which imports this module

    print(*bars(found), sep="\n")
    wrong = faults(found)
    print(f"{len(found)} modules, {len(small_modules(found))} of them under {LEAST_MODULE_LINES} lines; {len(wrong)} faults")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
