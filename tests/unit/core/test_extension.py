"""Extensions are found by their entry points, and declare their parts without importing them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.errors import ConfigError
from penstock.extension import Extension, installed, load_part
from tests.house import ROOT


def test_every_folder_of_extensions_is_installed_under_its_name() -> None:
    folders = sorted(path.parent.name for path in (ROOT / "extensions").glob("*/__init__.py"))
    assert [extension.name for extension in installed() if extension.name in folders] == folders


def test_a_declaration_imports_no_part_of_any_extension() -> None:
    program = "from penstock.extension import installed; installed(); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.startswith("penstock.extensions.")}
    assert ours == {f"penstock.extensions.{extension.name}" for extension in installed()}


def test_a_part_is_loaded_by_its_name() -> None:
    assert load_part("penstock.extension:Extension") is Extension


def test_a_part_without_an_attribute_is_refused() -> None:
    with pytest.raises(ConfigError, match="module:attribute"):
        Extension("mine", settings={"mine": "my_package.settings"})
    with pytest.raises(ConfigError, match="module:attribute"):
        Extension("mine", worker="my_package.worker")
