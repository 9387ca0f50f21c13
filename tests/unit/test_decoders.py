"""D106: types that several threads may decode are read by msgspec while one thread loads their module.

Two threads that decode one class for the first time together crash msgspec 0.22, so no function of a package may be what
reads a class first. The test reads the source: the crash itself is a matter of luck.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "core",
    "broker",
    "handlers",
    "workers",
    "gateway",
    "client",
    "extensions",
    "runs",
    "embedded",
    "loadtest",
    "tune",
    "cli",
)
# Types without anything that msgspec keeps between two calls.
PLAIN = {"str", "int", "float", "bool", "bytes", "list", "dict", "set", "tuple", "Any", "Raw", "msgspec"}
# Functions that take a type of their caller's, and why no second thread meets them on an unread type.
ONE_THREAD = {
    "handlers/schema.py": "the constructor makes a decoder of the type, and a child loads its model in one thread",
    "extensions/replicate/child/inputs.py": "called while a child loads its model, in one thread",
    "handlers/tasks/options.py": "called while a child loads its model, in one thread",
    "gateway/runs/request.py": "called in the thread of the gateway's event loop alone",
    "runs/sources/mapping.py": "the type is made for this one decoder, so nobody else has it",
    "tune/measuring/notebook.py": "a search reads its notebook in one thread",
}


def test_no_function_is_the_first_to_read_a_class() -> None:
    made = {name for tree in _trees().values() for name in _made_at_import(tree)}
    first = {
        f"{file}:{call.lineno}: {ast.unparse(call)}"
        for file, tree in _trees().items()
        if file not in ONE_THREAD
        for call, type_ in _reads(tree)
        if not _names(type_) <= (PLAIN | made if _is_convert(call) else PLAIN)
    }
    assert first == set(), "make a Decoder of the type while the module is loaded (D106: docs/design/house.md)"


def test_the_scan_sees_each_way_to_read_a_class_late() -> None:
    late = """
def read(data):
    msgspec.json.decode(data, type=Entry)
    msgspec.msgpack.decode(data, type=list[Entry])
    msgspec.convert(data, Entry)
    msgspec.convert(data, type=dict[str, Entry])
    return Decoder(Entry), msgspec.json.Decoder(Entry).decode(data), msgspec.json.decode(data)
"""
    assert len([call for call, type_ in _reads(ast.parse(late)) if not _names(type_) <= PLAIN]) == 6


def test_every_exception_still_reads_a_type_of_its_callers() -> None:
    for file in ONE_THREAD:
        assert any(not _names(type_) <= PLAIN for _, type_ in _reads(_trees()[file])), f"{file} is no exception any more"


@functools.cache
def _trees() -> dict[str, ast.Module]:
    """The modules that name msgspec; to parse the whole tree takes seconds."""
    files = (file for folder in PACKAGES for file in sorted((ROOT / folder).rglob("*.py")))
    texts = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in files}
    return {file: ast.parse(text) for file, text in texts.items() if "msgspec" in text}


def _reads(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls inside of functions that read a type, and the type."""
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))
    calls = {node for function in functions for node in ast.walk(function) if isinstance(node, ast.Call)}
    for call in calls:
        type_ = _type_of(call)
        if type_ is not None:
            yield call, type_


def _type_of(call: ast.Call) -> ast.expr | None:
    named = next((keyword.value for keyword in call.keywords if keyword.arg == "type"), None)
    function = ast.unparse(call.func)
    if function.endswith(".decode"):
        return named
    if function in ("msgspec.convert", "convert") and len(call.args) > 1:
        return call.args[1]
    if function.endswith("Decoder") and call.args and ("json" in function or "msgpack" in function or function == "Decoder"):
        return call.args[0]
    return named if _is_convert(call) else None


def _is_convert(call: ast.Call) -> bool:
    return ast.unparse(call.func) in ("msgspec.convert", "convert")


def _made_at_import(tree: ast.Module) -> Iterator[str]:
    """The classes that the module makes a decoder of while it is loaded."""
    statements = (node for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)))
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Decoder") and node.args:
            yield from _names(node.args[0]) - PLAIN


def _names(type_: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(type_) if isinstance(node, ast.Name)}
