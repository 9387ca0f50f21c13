from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.load import load
from penstock.handlers.tasks.file_handler import check_option_names
from tests.onnx_models import perceptron, saved

# A name in the archive distinguishes the kinds of torch files.
ARCHIVES = {
    "exported.pt2": "net/models/model.json",
    "package.pt2": "net/data/aotinductor/model/a.so",
    "script.pt": "net/constants.pkl",
    "weights.pt": "net/data.pkl",
}


def made(folder: Path, name: str) -> Path:
    path = folder / name
    if name in ARCHIVES:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(ARCHIVES[name], "")
    else:
        path.touch()
    return path


def refusal(path: Path, options: dict[str, Any], task: str = "") -> str:
    with pytest.raises(HandlerLoadError) as caught:
        check_option_names(path, Context("m", options=options, folder=path.parent), task=task)
    return caught.value.message


def test_a_misspelt_option_and_one_of_a_task_that_is_not_named_are_both_refused(tmp_path: Path) -> None:
    """Regression: a model file with options={"model_clas": ..., "top_k": 3} and without a task was loaded silently."""
    assert refusal(made(tmp_path, "exported.pt2"), {"model_clas": "net.py:Net", "top_k": 3}) == (
        "exported.pt2 has no option 'model_clas' (model_class is an option of weights with a model class), nor 'top_k' (it "
        'belongs to a task: set task = "image-classification" or "text-classification"); its options are outputs'
    )


@pytest.mark.parametrize(
    ("name", "options", "task", "words"),
    [
        ("weights.pt", {"model_clas": "n.py:N"}, "", "'model_clas' (did you mean model_class?); its options are fixed_batch"),
        ("weights.safetensors", {"weight_key": "ema"}, "", "'weight_key' (did you mean weights_key?)"),
        ("script.pt", {"model_class": "n.py:N"}, "", "(model_class is an option of weights with a model class)"),
        ("model.onnx", {"outputs": ["y"]}, "", "(outputs is an option of an exported program, an AOTInductor package,"),
        ("model.onnx", {"zzz": 1}, "", "model.onnx has no option 'zzz'; it takes none"),
        ("model.onnx", {"lables": "l.txt"}, "image-classification", "has no option 'lables' (did you mean labels?)"),
        ("model.onnx", {"nms": 0.4}, "image-classification", "(it belongs to a task: set task = \"object-detection\")"),
    ],
)  # fmt: skip
def test_what_was_meant_by_an_option_that_nobody_reads_is_said(
    tmp_path: Path, name: str, options: dict[str, Any], task: str, words: str
) -> None:
    assert words in refusal(made(tmp_path, name), options, task)


@pytest.mark.parametrize(
    ("name", "options", "task"),
    [
        ("exported.pt2", {"outputs": ["y"]}, ""),
        ("package.pt2", {"inputs": {}, "outputs": ["y"], "fixed_batch": 4}, ""),
        ("script.pt", {"inputs": {}, "outputs": ["y"], "fixed_batch": 4}, ""),
        ("weights.pt", {"inputs": {}, "model_class": "n.py:N", "model_args": {}, "weights_key": "ema"}, ""),
        ("script.pt", {"inputs": {}, "top_k": 3, "labels": "l.txt"}, "image-classification"),
        ("model.onnx", {}, ""),
    ],
)
def test_the_options_of_the_file_and_of_its_task_are_taken(
    tmp_path: Path, name: str, options: dict[str, Any], task: str
) -> None:
    path = made(tmp_path, name)
    check_option_names(path, Context("m", options=options, folder=tmp_path), task=task)


def test_a_model_file_is_loaded_with_no_option_that_it_would_ignore(tmp_path: Path) -> None:
    path = saved(perceptron(), tmp_path / "model.onnx")
    with pytest.raises(HandlerLoadError, match=re.escape("model.onnx has no option 'top_k' (it belongs to a task")):
        load(str(path), "m", options={"top_k": 3})


def test_a_handler_of_ones_own_has_the_options_it_likes(tmp_path: Path) -> None:
    saved(perceptron(), tmp_path / "model.onnx")
    (tmp_path / "mine.py").write_text("from penstock import ArrayHandler\nclass Mine(ArrayHandler): pass\n")
    assert load(str(tmp_path / "mine.py"), "m", options={"top_k": 3, "mine": 1}).context.options == {"top_k": 3, "mine": 1}
