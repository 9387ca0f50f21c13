"""Whether a handler looks at one request of a batch only, found in its source: such a handler gets its rows one by one. Pure.

Half of all public handlers read `data[0]` and nothing else, which answers wrongly as soon as a batch has two requests. A use of
the batch that is not understood counts as a use of all of it, so a handler that goes through its batch is never accused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from penstock.extensions.torchserve.child.handler_source import Function, HandlerSource, name_of, parameters, read_source
from penstock.extensions.torchserve.child.one_request import asks_first, returns_one

# Calls that tell nothing of how a batch is used, by the last part of their name.
_NEUTRAL = frozenset(
    ["len", "type", "isinstance", "print", "str", "repr", "bool", "id", "debug", "info", "warning", "warn", "error", "log"]
)
_SAME = frozenset(["list", "tuple", "copy", "deepcopy"])
# What a loop may do with a row so that it is not lost with the next one.
_KEEPS = frozenset(["append", "extend", "add", "update", "insert", "put", "write", "setdefault", "appendleft"])


@dataclass(slots=True)
class _Batch:
    """A batch, or a list with one entry per row of a batch. `first`: the lines at which one entry of it is taken alone."""

    first: list[int] = field(default_factory=list)
    is_whole: bool = False
    derived: list[_Batch] = field(default_factory=list)
    followed: set[tuple[int, str, int]] = field(default_factory=set)

    @property
    def is_used_whole(self) -> bool:
        return self.is_whole or any(own.is_used_whole for own in self.derived)

    @property
    def taken(self) -> list[int]:
        return self.first + [line for own in self.derived for line in own.taken]


def why_one_by_one(files: Sequence[tuple[str, str]], function: str = "") -> str:
    """Why the handler can take one row at a time only, with the place in its source; empty if it goes through its batch.

    `files`: per file of the handler its text and the name of its class there, base classes first. `function`: that which is
    called, if it is no class.
    """
    try:
        return _why(read_source(files), function)
    except (SyntaxError, ValueError, RecursionError):
        # It was imported, so it can be read in another way than ours; nothing is said of it then.
        return ""


def _why(source: HandlerSource, function: str) -> str:
    called = source.functions.get(function) if function else source.methods.get("handle")
    first, last = called or source.methods.get("preprocess"), called or source.methods.get("postprocess")
    batch = _Batch()
    if first is not None:
        _follow(first, 0, batch, source)
    if batch.taken and not batch.is_used_whole:
        return f"it reads one request of a batch only (line {min(batch.taken)})"
    line = returns_one(last, source) if last is not None else 0
    return f"it returns a list of one entry (line {line})" if line else asks_first(source)


def _follow(function: Function, place: int, batch: _Batch, source: HandlerSource) -> None:
    """Note how the function uses the batch that it gets at this place of a call. Each is followed once."""
    names = parameters(function)
    if not 0 <= place < len(names):
        batch.is_whole = True
    elif (function.lineno, function.name, place) not in batch.followed:
        batch.followed.add((function.lineno, function.name, place))
        reader = _UseReader({names[place]: batch}, source)
        for statement in function.body:
            reader.visit(statement)


class _UseReader(ast.NodeVisitor):
    """Goes through a function in the order of its lines. `names`: the variables that hold a batch at that point."""

    def __init__(self, names: dict[str, _Batch], source: HandlerSource) -> None:
        self._names = names
        self._source = source

    def _batch(self, node: ast.AST | None) -> _Batch | None:
        return self._names.get(node.id) if isinstance(node, ast.Name) else None

    def visit_Name(self, node: ast.Name) -> None:
        # Reached only where no other method has said what this use means.
        if isinstance(node.ctx, ast.Load) and (batch := self._batch(node)):
            batch.is_whole = True

    # Uses of one row.

    def visit_Subscript(self, node: ast.Subscript) -> None:
        batch = self._batch(node.value)
        if batch is None:
            self.generic_visit(node)
        elif _is_one(node.slice):
            batch.first.append(node.lineno)
        else:
            batch.is_whole = True
            self.visit(node.slice)

    def visit_Call(self, node: ast.Call) -> None:
        name = name_of(node)
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        taken = self._batch(receiver) if name == "pop" else self._iterated(node) if name == "next" else None
        if taken is not None:
            taken.first.append(node.lineno)
        elif name in _NEUTRAL:
            self._visit_others([*node.args, *(word.value for word in node.keywords)])
        else:
            self._visit_others([node.func])
            self._pass_on(node)

    def _iterated(self, node: ast.Call) -> _Batch | None:
        """The batch in `next(iter(batch))`."""
        inner = node.args[0] if node.args else None
        return self._batch(inner.args[0]) if isinstance(inner, ast.Call) and name_of(inner) == "iter" and inner.args else None

    def _pass_on(self, node: ast.Call) -> None:
        """A batch goes on to functions of the handler; what any other function does with it is unknown."""
        called = self._source.called(node)
        names = parameters(called) if called is not None else []
        given = list(enumerate(node.args))
        given += [(names.index(word.arg) if word.arg in names else -1, word.value) for word in node.keywords]
        for place, value in given:
            batch = self._batch(value)
            if batch is not None and called is not None:
                _follow(called, place, batch, self._source)
            else:
                self.visit(value)

    def _visit_others(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            if self._batch(node) is None:
                self.visit(node)

    # Whether there is a batch tells nothing of its rows.

    def visit_Compare(self, node: ast.Compare) -> None:
        self._visit_others([node.left, *node.comparators])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self._visit_others([node.operand])

    def visit_If(self, node: ast.If) -> None:
        self._visit_others([node.test])
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._visit_others([node.test, node.body, node.orelse])

    # Loops.

    def visit_For(self, node: ast.For) -> None:
        batch = self._looped(node.iter)
        if batch is None:
            self.visit(node.iter)
        else:
            self._note_loop(node, batch)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def _note_loop(self, node: ast.For, batch: _Batch) -> None:
        within = [inner for statement in node.body for inner in ast.walk(statement)]
        ends_at_once = isinstance(node.body[-1], ast.Return | ast.Break) and not _has(within, ast.Continue)
        of_one_row = {name for statement in node.body for name in _newly_given(statement)}
        keeps = any(_keeps(inner, of_one_row) for inner in within)
        if ends_at_once or (not keeps and _has(within, ast.Assign)):
            # After the loop there is one row left: the first, or the last.
            batch.first.append(node.lineno)
        elif keeps:
            batch.is_whole = True

    def _looped(self, node: ast.AST) -> _Batch | None:
        """The batch that `batch` or `enumerate(batch)` goes through."""
        if isinstance(node, ast.Call) and name_of(node) in ("enumerate", "tqdm", "reversed") and node.args:
            node = node.args[0]
        return self._batch(node)

    # Variables.

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assign(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign([node.target], node.value)

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        made = self._made(value) if all(isinstance(target, ast.Name) for target in targets) else None
        batch = self._batch(value)
        if made is None and batch is not None:
            self._take(batch, targets[0], value.lineno)
        elif made is None:
            self.visit(value)
        for name in [one.id for target in targets for one in ast.walk(target) if _is_stored(one)]:
            self._names.pop(name, None)
            if made is not None:
                self._names[name] = made

    def _take(self, batch: _Batch, target: ast.expr, line: int) -> None:
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []
        kept = [part for part in parts if not (isinstance(part, ast.Starred) and _is_dropped(part.value))]
        if len(kept) == 1 and not isinstance(kept[0], ast.Starred):
            batch.first.append(line)
        else:
            batch.is_whole = True

    def _made(self, value: ast.expr) -> _Batch | None:
        """The batch that a variable with this value holds: the same, or a new list with an entry per row. None: neither."""
        if isinstance(value, ast.BoolOp):
            return next(filter(None, map(self._batch, value.values)), None)
        if isinstance(value, ast.Call) and name_of(value) in _SAME and len(value.args) == 1:
            return self._batch(value.args[0])
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice) and not _is_one(value.slice):
            return self._batch(value.value)
        if isinstance(value, ast.ListComp) and len(value.generators) == 1 and (batch := self._looped(value.generators[0].iter)):
            batch.derived.append(made := _Batch())
            self.visit(value.elt)
            return made
        return self._batch(value)


def _is_one(index: ast.expr) -> bool:
    """Whether it means one certain entry of a list: `[0]`, `[-1]`, `[:1]`."""
    if isinstance(index, ast.Slice):
        return _is_number(index.upper, 1) and (index.lower is None or _is_number(index.lower, 0))
    is_negative = isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub)
    return _is_number(index, 0) or (is_negative and _is_number(getattr(index, "operand", None), 1))


def _is_number(node: ast.AST | None, number: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == number


def _is_dropped(node: ast.expr) -> bool:
    """Whether a variable's name says that it is not used."""
    return isinstance(node, ast.Name) and node.id.startswith("_")


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _has(nodes: Iterable[ast.AST], kind: type[ast.AST]) -> bool:
    return any(isinstance(node, kind) for node in nodes)


def _newly_given(statement: ast.stmt) -> set[str]:
    """The variables that get a value here which does not depend on the one before."""
    if not isinstance(statement, ast.Assign):
        return set()
    return {one.id for target in statement.targets for one in ast.walk(target) if _is_stored(one)} - _used(statement.value)


def _used(value: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(value) if isinstance(one, ast.Name)}


def _keeps(node: ast.AST, of_one_row: set[str]) -> bool:
    """Whether a statement of a loop keeps more than this row, or may. `of_one_row`: variables that each row sets anew."""
    if isinstance(node, ast.Yield | ast.YieldFrom | ast.Return):
        return True
    if isinstance(node, ast.AugAssign):
        return not (isinstance(node.target, ast.Name) and node.target.id in of_one_row)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and name_of(node.value) not in _NEUTRAL
    if isinstance(node, ast.Call):
        return name_of(node) in _KEEPS
    if not isinstance(node, ast.Assign):
        return False
    stored = {one.id for target in node.targets for one in ast.walk(target) if _is_stored(one)}
    return bool((stored & _used(node.value)) - of_one_row) or any(isinstance(one, ast.Subscript) for one in node.targets)
