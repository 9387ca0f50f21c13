from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.serve.sources import declared_models, model_name
from penstock.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("square.py", "net.onnx", "other.toml"):
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("examples/square.py", "square"),
        ("models.py:TextEmbedder", "text-embedder"),
        ("package.module:Square", "square"),
        ("nets/resnet 50.onnx", "resnet-50"),
    ],
)
def test_a_model_is_named_after_its_object_or_its_file(source: str, name: str) -> None:
    assert model_name(source) == name


def test_files_become_absolute_and_modules_stay(folder: Path) -> None:
    found = declared_models(["square.py", "fast=net.onnx", "package.module:Echo", "square.py:Cube"], config=None, folder=folder)
    assert found.models == {
        "square": f"{folder}/square.py",
        "fast": f"{folder}/net.onnx",
        "echo": "package.module:Echo",
        "cube": f"{folder}/square.py:Cube",
    }
    assert found.config is None


def test_a_settings_file_may_be_named_like_a_model(folder: Path) -> None:
    assert declared_models(["other.toml"], config=None, folder=folder).config == folder / "other.toml"


def test_the_folders_own_settings_serve_when_nothing_is_named(folder: Path) -> None:
    assert declared_models([], config=None, folder=folder).config is None
    (folder / "penstock.toml").write_text("")
    assert declared_models([], config=None, folder=folder).config == folder / "penstock.toml"
    assert declared_models(["square.py"], config=None, folder=folder).config is None


def test_every_fault_is_told_at_once_with_near_names(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        declared_models(["sqare.py", "nowhere/x.py", "square", "square.py", "square=net.onnx"], config=None, folder=folder)
    text = str(caught.value)
    assert "did you mean square.py?" in text
    assert "no such folder" in text
    assert "module:Name" in text
    assert "is already taken" in text
