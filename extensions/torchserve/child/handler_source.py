"""The functions of a handler's source, and which of them a call means. Pure."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class HandlerSource(NamedTuple):
    """Functions of the handler's modules, and methods of its classes, by name."""

    functions: dict[str, Function]
    methods: dict[str, Function]

    def called(self, node: ast.Call) -> Function | None:
        """The function or method that is called, if it is one of the handler's own: any object may hold the handler."""
        if isinstance(node.func, ast.Name):
            return self.functions.get(node.func.id)
        if not isinstance(node.func, ast.Attribute):
            return None
        if not is_super(node.func):
            return self.methods.get(node.func.attr)
        # The base class is not ours to read, but its `handle` is known to begin with `preprocess`.
        return self.methods.get("preprocess") if node.func.attr == "handle" else None


def read_source(files: Sequence[tuple[str, str]]) -> HandlerSource:
    """`files`: per file of the handler its text and the name of the class that counts there, base classes first.

    Methods of other classes count where none of these has one of their name.
    """
    functions: dict[str, Function] = {}
    methods: dict[str, Function] = {}
    others: dict[str, Function] = {}
    for text, class_name in files:
        tree = ast.parse(text)
        functions |= _named(tree.body)
        for node in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
            (methods if node.name == class_name else others).update(_named(node.body))
    return HandlerSource(functions, {**others, **methods})


def _named(body: Sequence[ast.stmt]) -> dict[str, Function]:
    return {node.name: node for node in body if isinstance(node, Function)}


def name_of(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def is_super(node: ast.expr) -> bool:
    """Whether it is an attribute of `super()`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call) and name_of(node.value) == "super"


def parameters(function: Function) -> list[str]:
    """The names that positions of a call mean: without `self`."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    is_static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list)
    return names[1:] if names[:1] in (["self"], ["cls"]) and not is_static else names
