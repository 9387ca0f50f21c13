from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.errors import BadRequest
from penstock.tune.sweep_file import read_sweep, sweep_of

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CASE = """
batch_size: [1, 2, 4, 8]
slots: [1, 2]
precision: [fp32, fp16]
processors: [cpu, gpu]
compile: [off, default]
batch_delay: 10
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_former_sweep_is_read_under_our_names(tmp_path: Path) -> None:
    assert read_sweep(written(tmp_path, "sweep.yaml", CASE)) == {
        "batch_size": [1, 2, 4, 8],
        "slots": [1, 2],
        "precision": ["fp32", "fp16"],
        "device": ["cpu", "cuda"],
        "compile": ["off", "default"],
        "max_wait_s": [0.01],
    }


def test_toml_says_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, "sweep.toml", 'batch_size = [1, 8]\nprecision = "bf16"\nprocessors = ["cpu"]\n')
    assert read_sweep(path) == {"batch_size": [1, 8], "precision": ["bf16"], "device": ["cpu"]}


def test_a_value_written_twice_is_tried_once() -> None:
    assert sweep_of({"slots": [2, 1, 2]}) == {"slots": [2, 1]}


def test_an_unknown_dimension_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadRequest, match=r"no dimension 'batchsize'; its dimensions are batch_size, .*processors"):
        sweep_of({"batchsize": [1]})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("batch_size", [0], "0 is not a whole number"),
        ("batch_size", [True], "True is not a whole number"),
        ("slots", ["two"], "'two' is not a whole number"),
        ("precision", ["fp64"], "'fp64' is not one of fp32"),
        ("precision", [["fp32"]], "not one of fp32"),
        ("processors", ["tpu"], "'tpu' is not cpu, gpu"),
        ("max_wait_s", [-1], "-1 is not a number of seconds"),
        ("threads", [], "no values"),
        ("threads", {"1": 2}, "is not a whole number"),
    ],
)
def test_a_value_that_cannot_be_tried_is_named(key: str, value: object, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        sweep_of({key: value})


def test_two_names_of_one_dimension_are_refused() -> None:
    with pytest.raises(BadRequest, match="one dimension"):
        sweep_of({"device": ["cpu"], "processors": ["gpu"]})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("sweep.json", "{}", "not a sweep file"),
        ("sweep.yaml", "a: [1", "not YAML"),
        ("sweep.toml", "a = [1", "not TOML"),
        ("sweep.yaml", "", "no dimensions"),
        ("sweep.yml", "- 1\n- 2\n", "no dimensions"),
        # This tag would make an object out of text.
        ("sweep.yaml", "slots: !!python/object/apply:os.getpid []", "not YAML"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused_with_words(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        read_sweep(written(tmp_path, name, text))


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot be read"):
        read_sweep(tmp_path / "sweep.yaml")


def test_without_pyyaml_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(BadRequest, match="PyYAML is not installed") as refused:
        read_sweep(written(tmp_path, "sweep.yaml", CASE))
    assert "penstock-inference[sweep]" in str(refused.value.hint)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/sweep.*")), ids=str)
def test_the_examples_sweeps_are_read(path: Path) -> None:
    assert read_sweep(path)["batch_size"] == [1, 2, 4, 8]
