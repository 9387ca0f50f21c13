"""What a handler does for one request only, whatever its batch: returns one entry, asks of one, sets one response. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.extensions.torchserve.child.handler_source import Function, HandlerSource, name_of

# Calls of the context, and at which place each takes the index of a request.
_ASKS = {"get_request_header": 0, "get_all_request_header": 0, "get_sequence_id": 0}
_SAYS = {"set_response_content_type": 0, "set_response_header": 0, "set_response_status": 2}
# Requests with these are called alone, so that whoever asks the first one has asked all.
_OF_ALL = ("explain", "describe")


def returns_one(function: Function, source: HandlerSource) -> int:
    """The line of the first return of one entry; 0 if one of its returns may have as many entries as the batch."""
    return _returns_one(function, source, {})


def _returns_one(function: Function, source: HandlerSource, known: dict[int, int]) -> int:
    """`known`: what was found of functions before; 0 of those that are being read, which call themselves."""
    if id(function) not in known:
        known[id(function)] = 0
        known[id(function)] = _line_of(function, source, known)
    return known[id(function)]


def _line_of(function: Function, source: HandlerSource, known: dict[int, int]) -> int:
    found = [node for node in _own_nodes(function) if isinstance(node, ast.Return)]
    values = [node.value for node in found if node.value is not None and not _is_none(node.value)]
    lines = [_line(value, function, source, known) for value in values]
    return lines[0] if lines and all(lines) else 0


def _line(value: ast.expr, function: Function, source: HandlerSource, known: dict[int, int]) -> int:
    if isinstance(value, ast.List):
        return value.lineno if len(value.elts) == 1 and not isinstance(value.elts[0], ast.Starred) else 0
    if isinstance(value, ast.Call):
        called = source.called(value)
        return _returns_one(called, source, known) if called is not None else 0
    return _line_of_name(value.id, function, source, known) if isinstance(value, ast.Name) else 0


def _line_of_name(name: str, function: Function, source: HandlerSource, known: dict[int, int]) -> int:
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
    return 0 if changes else _line(given[-1], function, source, known)


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


def asks_first(source: HandlerSource) -> str:
    """What it does for the first request only, with the line; empty if it does nothing so."""
    calls = [node for own in (*source.functions.values(), *source.methods.values()) for node in ast.walk(own)]
    found = [node for node in calls if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    for places, what in ((_ASKS, "it asks for the headers of"), (_SAYS, "it sets the response of")):
        first = [node for node in found if name_of(node) in places and _is_of_first(node, places[name_of(node)])]
        others = {name_of(node) for node in found if name_of(node) in places and node not in first}
        lines = [node.lineno for node in first if name_of(node) not in others and not _is_of_all(node)]
        if lines:
            return f"{what} one request of a batch only (line {min(lines)})"
    return ""


def _is_of_first(call: ast.Call, place: int) -> bool:
    """Whether the index is written as 0, or left out where 0 is taken for it."""
    named = [word.value for word in call.keywords if word.arg == "idx"]
    given = named or call.args[place : place + 1]
    if not given:
        return place > 0
    return isinstance(given[0], ast.Constant) and given[0].value == 0 and type(given[0].value) is int


def _is_of_all(call: ast.Call) -> bool:
    return any(isinstance(value, ast.Constant) and value.value in _OF_ALL for value in call.args)
