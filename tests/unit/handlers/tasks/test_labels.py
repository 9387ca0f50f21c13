from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.tasks.labels import NOT_NUMBERS, Labels, activated, best, read_labels


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("names.txt", "cat\ndog\n"),
        ("names.json", '["cat", "dog"]'),
        ("names.json", '{"0": "cat", "1": "dog"}'),
        ("names.json", '{"1": ["n02", "dog"], "0": ["n01", "cat"]}'),
        ("names.json", '{"object_type_names": ["cat", "dog"]}'),
    ],
)
def test_labels_are_read_from_each_of_the_known_shapes(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    labels = read_labels(tmp_path, name)
    assert [labels.name(index) for index in range(3)] == ["cat", "dog", "2"]


def test_torchserves_file_is_taken_unasked_and_ids_without_it(tmp_path: Path) -> None:
    assert read_labels(tmp_path, "").name(0) == "0"
    (tmp_path / "index_to_name.json").write_text('{"0": "cat"}')
    assert read_labels(tmp_path, "").name(0) == "cat"


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.json", '{"x": "cat"}'), ("a.json", "7")])
def test_a_labels_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(HandlerLoadError, match=r"a\.json is not a list of names"):
        read_labels(tmp_path, name)


def test_a_missing_labels_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HandlerLoadError, match="must be next to the model"):
        read_labels(tmp_path, "names.txt")


def test_two_classes_of_one_name_stay_apart() -> None:
    labels = Labels(["crane", "ship", "crane"])
    assert best(np.array([0.3, 0.2, 0.5]), 3, labels) == {"crane (2)": 0.5, "crane": 0.3, "ship": 0.2}


def test_the_best_come_first_and_never_more_than_there_are() -> None:
    assert json.dumps(best(np.array([0.1, 0.6, 0.3]), 2, Labels())) == '{"1": 0.6, "2": 0.3}'
    assert json.dumps(best(np.array([0.5, 0.5]), 5, Labels())) == '{"0": 0.5, "1": 0.5}'


def test_nan_among_the_scores_is_a_failure_and_not_left_out() -> None:
    # Regression: NaN sorts last, so with a top_k the answer looked complete without it.
    assert best(np.array([0.5, np.nan, 0.1]), 2, Labels()) is NOT_NUMBERS


def test_activations_do_not_overflow() -> None:
    wild = np.array([1e4, -1e4, 0.0], dtype=np.float32)
    assert activated(wild, "softmax").tolist() == [1, 0, 0]
    assert activated(wild, "sigmoid").tolist() == [1, 0, 0.5]
    assert activated(wild, "none").tolist() == [1e4, -1e4, 0]
    assert activated(np.array([1, 1], dtype=np.float16), "softmax").dtype == np.float32
