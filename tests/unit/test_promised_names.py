"""What docs/extend promises to extensions is there, and the extension outside the tree uses nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from tests.house import ROOT

PAGE = ROOT / "docs" / "extend" / "write-an-extension.md"
SOURCES = sorted((ROOT / "examples" / "extension" / "src").rglob("*.py"))
ALL = "all"


def promised() -> Mapping[str, set[str]]:
    """By module. A name `all` stands for every name."""
    table = PAGE.read_text().partition("<!-- promised -->")[2].partition("\n\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", table, re.MULTILINE)
    return {module: set(re.findall(r"`(\w+)`", names)) or {ALL} for module, names in rows}


def imported(text: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "penstock":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("penstock.") for alias in node.names)


@pytest.mark.parametrize("module", promised())
def test_every_promised_name_is_there(module: str) -> None:
    found = import_module(module)
    assert [name for name in promised()[module] - {ALL} if not hasattr(found, name)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_extension_outside_the_tree_imports_what_is_promised(path: Path) -> None:
    names = promised()
    unknown = [pair for pair in imported(path.read_text()) if not names.get(pair[0], set()) & {pair[1], ALL}]
    assert unknown == []


def test_the_page_imports_what_it_promises() -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    names = promised()
    assert [pair for pair in imported(code) if not names.get(pair[0], set()) & {pair[1], ALL}] == []
