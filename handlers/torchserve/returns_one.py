"""Whether a function of a handler always returns a list of one entry, whatever the size of its batch. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.handlers.torchserve.handler_source import Function, HandlerSource

_DEEP = 4


def returns_one(function: Function, source: HandlerSource, deep: int = 0) -> int:
    """The line of the first such return; 0 if one of its returns may have as many entries as the batch, or none is known."""
    found = [node for node in _own_nodes(function) if isinstance(node, ast.Return)]
    values = [node.value for node in found if node.value is not None and not _is_none(node.value)]
    lines = [_line(value, function, source, deep) for value in values]
    return lines[0] if lines and all(lines) else 0


def _line(value: ast.expr, function: Function, source: HandlerSource, deep: int) -> int:
    if isinstance(value, ast.List):
        return value.lineno if len(value.elts) == 1 and not isinstance(value.elts[0], ast.Starred) else 0
    if isinstance(value, ast.Call):
        called = source.called(value)
        return returns_one(called, source, deep + 1) if called is not None and deep < _DEEP else 0
    return _line_of_name(value.id, function, source, deep) if isinstance(value, ast.Name) else 0


def _line_of_name(name: str, function: Function, source: HandlerSource, deep: int) -> int:
    """That of a variable: of what it was given last, or of the one entry that is appended to an empty list."""
    given = [
        node.value
        for node in _own_nodes(function)
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
    ]
    changes = [node for node in _own_nodes(function) if _changes(node, name)]
    if not given or (len(given) > 1 and not isinstance(given[-1], ast.Call)):
        return 0
    if isinstance(given[-1], ast.List) and not given[-1].elts:
        loops = [node for node in _own_nodes(function) if isinstance(node, ast.For | ast.While)]
        within = {id(inner) for loop in loops for inner in ast.walk(loop)}
        is_one = len(changes) == 1 and _appends(changes[0]) and id(changes[0]) not in within
        return given[-1].lineno if is_one else 0
    return 0 if changes else _line(given[-1], function, source, deep)


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """All nodes of the function but those of functions within it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting[:0] = ast.iter_child_nodes(node)


def _changes(node: ast.AST, name: str) -> bool:
    """Whether it changes the list that the variable holds: a method of it is called, or something is added."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    receiver = node.func.value if is_method else None  # type: ignore[attr-defined]
    return isinstance(receiver, ast.Name) and receiver.id == name


def _appends(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
