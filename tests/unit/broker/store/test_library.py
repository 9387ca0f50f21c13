"""The library has the Lua files that the installed extensions declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.store import library
from penstock.errors import ConfigError
from penstock.extension import Extension
from tests.house import ROOT


@pytest.fixture
def declaring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment whose only extension declares the functions of a package without Lua files."""
    (package := tmp_path / "package_without_lua").mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    declared = Extension("mine", functions="package_without_lua:functions")
    monkeypatch.setattr(library, "installed", lambda: (declared,))
    library.lua_extensions.cache_clear()


def test_every_lua_file_below_extensions_is_in_the_library() -> None:
    written = {path.stem: path.read_text() for path in (ROOT / "extensions").glob("*/functions/*.lua")}
    assert {name: text for one in library.lua_extensions() for name, text in one.texts.items()} == written


@pytest.mark.usefixtures("declaring")
def test_declared_functions_that_are_not_installed_are_refused() -> None:
    # A wheel without its package data served, and what the extension does in the store was left out.
    try:
        with pytest.raises(ConfigError, match="package_without_lua:functions, where no Lua file is installed"):
            library.lua_extensions()
    finally:
        library.lua_extensions.cache_clear()
