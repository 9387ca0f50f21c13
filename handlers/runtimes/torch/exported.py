"""`.pt2` files of torch.export.save: the program itself states its inputs, its free dimensions and their bounds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.batches import BatchSizes
from penstock.handlers.runtimes.contract import Port
from penstock.handlers.runtimes.symbols import Symbol
from penstock.handlers.runtimes.torch.archive import FileKind
from penstock.handlers.runtimes.torch.declared import ELEMENTS
from penstock.handlers.runtimes.torch.files import unreadable
from penstock.handlers.runtimes.torch.program import Program

_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def read_exported(path: Path, device: Any) -> Program:
    """Open the program. Raises `HandlerLoadError` for an unreadable file and for inputs that are not rows of a batch."""
    export = import_module("torch.export")
    try:
        with _weights_only():
            exported = export.load(path)
        if device.type != "cpu":
            exported = import_module("torch.export.passes").move_to_device_pass(exported, str(device))
    except Exception as error:
        # zipfile, json, pickle and torch each raise their own errors here.
        raise unreadable(path, error, "save it again with torch.export.save of this torch") from error
    return _program(exported)


@contextmanager
def _weights_only() -> Iterator[None]:
    """Forbid full unpickling by torch's own switch: torch.export.load tries it if safe unpickling fails."""
    before = os.environ.get(_WEIGHTS_ONLY)
    os.environ[_WEIGHTS_ONLY] = "1"
    try:
        yield
    finally:
        os.environ.pop(_WEIGHTS_ONLY)
        if before is not None:
            os.environ[_WEIGHTS_ONLY] = before


def _program(exported: Any) -> Program:
    pytree = import_module("torch.utils._pytree")
    given = [spec.arg for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    tensors = [(arg.name, values[arg.name]) for arg in given if not hasattr(arg, "value")]
    _check_tensors(tensors)
    # Arguments that are no tensors were fixed at export and must still be passed.
    fixed = [getattr(arg, "value", None) for arg in given]
    indices = [index for index, arg in enumerate(given) if not hasattr(arg, "value")]
    spec = exported.call_spec.in_spec

    def arguments(rows: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        leaves = list(fixed)
        for index, row in zip(indices, rows, strict=True):
            leaves[index] = row
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        return args, kwargs

    example = exported.example_inputs
    leaves = pytree.tree_leaves(example, is_leaf=lambda leaf: leaf is None) if example else None
    return Program(
        kind=FileKind.EXPORTED,
        # The guards are left out: they are source code in the file that torch would execute, and the ports check the same
        # shapes.
        module=exported.module(check_guards=False),
        arguments=arguments,
        ports=tuple(_port(name, value, exported.range_constraints) for name, value in tensors),
        elements=tuple(_element(value) for _, value in tensors),
        batch=_batch(tensors, exported.range_constraints),
        example=tuple(leaves[index] for index in indices) if leaves else None,
    )


def _check_tensors(tensors: list[tuple[str, Any]]) -> None:
    for name, value in tensors:
        if not hasattr(value, "dtype"):
            raise HandlerLoadError(f"input {name} of the exported program is a number, not a tensor; fix it at export")
        if not len(value.shape):
            raise HandlerLoadError(f"input {name} of the exported program has no axes; its first axis must be the batch")
        if _element(value) not in ELEMENTS:
            raise HandlerLoadError(
                f"input {name} of the exported program has dtype {value.dtype}; use one of {', '.join(ELEMENTS)}"
            )


def _element(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _port(name: str, value: Any, ranges: dict[Any, Any]) -> Port:
    sizes = list(value.shape)[1:]
    free = {axis: size for axis, size in enumerate(sizes) if not isinstance(size, int)}
    symbols = {axis: _symbol(size) for axis, size in free.items()}
    return Port(
        name,
        ELEMENTS[_element(value)],
        tuple(None if axis in free else size for axis, size in enumerate(sizes)),
        bounds={axis: _range(size, ranges) for axis, size in free.items()},
        symbols={axis: symbol for axis, symbol in symbols.items() if symbol},
    )


def _symbol(size: Any) -> Symbol | None:
    """The symbol of a dimension of the form `factor * s + offset`; other formulas are left to the program."""
    expression = size.node.expr
    if len(expression.free_symbols) != 1:
        return None
    (root,) = expression.free_symbols
    factor = expression.coeff(root)
    offset = expression - factor * root
    whole = factor.is_Integer and offset.is_Integer and factor > 0
    return Symbol(str(root), int(factor), int(offset)) if whole else None


def _batch(tensors: list[tuple[str, Any]], ranges: dict[Any, Any]) -> BatchSizes:
    """The size of the first axis, which all inputs must share."""
    axes = {name: value.shape[0] for name, value in tensors}
    words = {size if isinstance(size, int) else str(size.node.expr) for size in axes.values()}
    first = next(iter(axes.values()), None)
    plain = isinstance(first, int) or (first is not None and first.node.expr.is_symbol)
    if len(words) != 1 or not plain:
        listed = ", ".join(f"{name}: {size}" for name, size in axes.items())
        raise HandlerLoadError(
            f"the first axes of the exported program's inputs are not one batch ({listed or 'it has no inputs'}); "
            "export it again with one dynamic dimension as the first axis of every input"
        )
    if isinstance(first, int):
        return BatchSizes(first, first)
    low, high = _range(first, ranges)
    return BatchSizes(low, high)


def _range(size: Any, ranges: dict[Any, Any]) -> tuple[int, int | None]:
    """Smallest and largest size of a free dimension. A dimension computed from a symbol is bounded by the symbol's range."""
    symbol = _symbol(size)
    bounds = {str(known): limits for known, limits in ranges.items()}.get(symbol.name) if symbol else None
    if symbol is None or bounds is None:
        return 1, None
    # torch records 2 for every dimension without a lower bound, and means 0 or more.
    low = 1 if int(bounds.lower) <= 2 else int(bounds.lower)
    return max(1, symbol.size(low)), symbol.size(int(bounds.upper)) if bounds.upper.is_Integer else None
