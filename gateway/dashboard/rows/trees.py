"""JSON of jobs on pages: a table if it is one, else a tree whose branches open and close. Bounded, and pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

_MOST_NODES, _DEEPEST, _MOST_CHARS = 400, 12, 200
_MOST_ROWS, _MOST_COLUMNS = 50, 20


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One value: a leaf has `text`, a branch `children`. `note`: the size of a branch, or what was left out of it."""

    name: str
    text: str = ""
    note: str = ""
    children: tuple[TreeNode, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownTable:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def tree_of(value: Any) -> TreeNode | None:
    """None for a value without nested branches, which reads better as text."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(one, dict | list) and one for one in inner):
        return None
    return _node("", value, 0, [_MOST_NODES])


def _node(name: str, value: Any, depth: int, left: list[int]) -> TreeNode:
    left[0] -= 1
    if not isinstance(value, dict | list) or not value:
        return TreeNode(name, _leaf(value))
    count = f"{len(value)} {'fields' if isinstance(value, dict) else 'items'}"
    if depth >= _DEEPEST:
        return TreeNode(name, _leaf(value), f"{count}, not shown deeper")
    children: list[TreeNode] = []
    for key, one in _members(value):
        if left[0] <= 0:
            break
        children.append(_node(key, one, depth + 1, left))
    note = count if len(children) == len(value) else f"{count}, the first {len(children)} shown"
    return TreeNode(name, "", note, tuple(children))


def _members(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key)[:_MOST_CHARS], one) for key, one in value.items())
    else:
        yield from ((str(index), one) for index, one in enumerate(value))


def _leaf(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"


def table_of(value: Any) -> ShownTable | None:
    """A table from rows of scalars, or from objects with scalar members; None for other values."""
    if not isinstance(value, list) or len(value) < 2:
        return None
    shown = value[:_MOST_ROWS]
    if all(isinstance(row, dict) and row and _is_flat(row.values()) for row in shown):
        names = list(dict.fromkeys(name for row in shown for name in row))
        cells = [[cell(row[name]) if name in row else "" for name in names] for row in shown]
    elif all(isinstance(row, list) and row and _is_flat(row) for row in shown):
        names = [str(index) for index in range(max(map(len, shown)))]
        cells = [[cell(one) for one in row] + [""] * (len(names) - len(row)) for row in shown]
    else:
        return None
    left_out = [f"the first {_MOST_ROWS} of {len(value)} rows"] if len(value) > _MOST_ROWS else []
    left_out += [f"the first {_MOST_COLUMNS} of {len(names)} columns"] if len(names) > _MOST_COLUMNS else []
    rows = tuple(tuple(row[:_MOST_COLUMNS]) for row in cells)
    return ShownTable(tuple(name[:60] for name in names[:_MOST_COLUMNS]), rows, ", ".join(left_out))


def _is_flat(values: Any) -> bool:
    return not any(isinstance(one, dict | list) for one in values)


def cell(value: Any) -> str:
    """A scalar as the text of a table's cell."""
    return f"{value:g}" if isinstance(value, float) else value[:60] if isinstance(value, str) else _leaf(value)
