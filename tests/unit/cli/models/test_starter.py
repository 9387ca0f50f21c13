from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from penstock.cli.models.starter import starter_of, templates, write_all
from penstock.errors import BadRequest


@pytest.mark.parametrize("template", templates())
@pytest.mark.parametrize("name", ["square", "my-model", "2fast", "a.b"])
def test_the_files_are_valid_whatever_the_name(name: str, template: str) -> None:
    starter = starter_of(name, template)
    assert name in tomllib.loads(starter.files["penstock.toml"].decode())["models"]
    assert starter.call
    for path, content in starter.files.items():
        if path.endswith(".py"):
            ast.parse(content)


def test_nothing_is_overwritten_and_nothing_is_half_written(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("mine")
    with pytest.raises(BadRequest, match=r"penstock\.toml"):
        write_all(tmp_path, starter_of("square").files)
    assert [path.name for path in tmp_path.iterdir()] == ["penstock.toml"]
    assert (tmp_path / "penstock.toml").read_text() == "mine"


def test_each_template_says_what_it_is_for() -> None:
    assert all(purpose.endswith(".") for purpose in templates().values())
    assert {"image", "text", "stream", "async", "onnx", "torch", "sklearn", "torchserve"} < set(templates())
