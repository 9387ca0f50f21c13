from __future__ import annotations

from typing import Any

import pytest

from penstock.gateway.dashboard.rows.trees import ShownTable, TreeNode, table_of, tree_of


def size_of(node: TreeNode) -> int:
    return 1 + sum(map(size_of, node.children))


@pytest.mark.parametrize("value", [4, "text", [], {}, [1, 2], {"x": 4, "y": []}])
def test_what_reads_well_as_text_is_no_tree(value: Any) -> None:
    assert tree_of(value) is None


def test_branches_have_names_and_sizes_and_leaves_are_json() -> None:
    root = tree_of({"a": {"b": "<b>"}, "c": [None, 1.5]})
    assert root is not None
    assert [(child.name, child.note) for child in root.children] == [("a", "1 fields"), ("c", "2 items")]
    assert [leaf.text for child in root.children for leaf in child.children] == ['"<b>"', "null", "1.5"]


def test_a_tree_is_bounded_in_breadth_and_depth() -> None:
    wide = tree_of([[n] * 10 for n in range(1000)])
    assert wide is not None
    assert size_of(wide) <= 412
    assert "shown" in wide.note
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    nested = tree_of(deep)
    assert nested is not None
    assert size_of(nested) < 20


def test_rows_of_scalars_are_a_table_and_nothing_else_is() -> None:
    assert table_of([[1, 2.5], [3]]) == ShownTable(("0", "1"), (("1", "2.5"), ("3", "")))
    assert table_of([{"a": 1}, {"b": "x"}]) == ShownTable(("a", "b"), (("1", ""), ("", "x")))
    others: list[Any] = [[[1, [2]], [3]], [1, 2], [[1]], {"a": [1]}, [[1], {"a": 1}], [{}, {}]]
    assert [table_of(value) for value in others] == [None] * len(others)


def test_a_table_is_cut_and_says_so() -> None:
    table = table_of([list(range(30))] * 80)
    assert table is not None
    assert (len(table.rows), len(table.columns)) == (50, 20)
    assert table.note == "the first 50 of 80 rows, the first 20 of 30 columns"
