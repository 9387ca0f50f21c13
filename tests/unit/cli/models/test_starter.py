from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from penstock.cli.models.starter import starter_files, write_all
from penstock.errors import BadRequest


@pytest.mark.parametrize("name", ["square", "my-model", "2fast", "a.b"])
def test_the_files_are_valid_whatever_the_name(name: str) -> None:
    files = starter_files(name)
    assert name in tomllib.loads(files.pop("penstock.toml"))["models"]
    for content in files.values():
        ast.parse(content)


def test_nothing_is_overwritten_and_nothing_is_half_written(tmp_path: Path) -> None:
    files = starter_files("square")
    (tmp_path / "penstock.toml").write_text("mine")
    with pytest.raises(BadRequest, match=r"penstock\.toml"):
        write_all(tmp_path, files)
    assert [path.name for path in tmp_path.iterdir()] == ["penstock.toml"]
    assert (tmp_path / "penstock.toml").read_text() == "mine"
