"""Names of a model's classes, and Python's classes by name. The expected values are what TorchServe 0.12 answers."""

from __future__ import annotations

import json
from json import JSONDecoder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.extensions.torchserve.child.surface.lookups import (
    import_class,
    list_classes_from_module,
    load_label_mapping,
    map_class_to_label,
)

NAMES = {"0": "cat", "1": "dog"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"0": "cat", "1": "dog"}, NAMES),
        ({"0": ["n01", "cat"], "1": "dog"}, NAMES),
        ({"object_type_names": ["cat", "dog"]}, NAMES),
    ],
)
def test_a_mapping_is_read(content: Any, expected: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "index_to_name.json"
    path.write_text(json.dumps(content))
    assert load_label_mapping(str(path)) == expected


@pytest.mark.parametrize("content", [["cat"], {"0": []}, {"0": 3}, {"0": {"a": "b"}}])
def test_what_is_no_mapping_is_refused(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "index_to_name.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"index->name"):
        load_label_mapping(str(path))


def test_without_a_file_there_is_no_mapping_and_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_label_mapping(str(tmp_path / "none.json")) is None
    assert "Inference output will not include class name" in caplog.text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (([[0.9, 0.1]], NAMES, [[0, 1]]), [{"cat": 0.9, "dog": 0.1}]),
        (([[0.9, 0.1], [0.5, 0.5]], NAMES, [[0, 1], [1, 0]]), [{"cat": 0.9, "dog": 0.1}, {"dog": 0.5, "cat": 0.5}]),
        (([[0.9, 0.1]],), [{"0": 0.9, "1": 0.1}]),
        (([[0.9, 0.1]], None, [[5, 7]]), [{"5": 0.9, "7": 0.1}]),
        (([[0.9, 0.1]], NAMES), [{"cat": 0.9, "dog": 0.1}]),
        # TorchServe raises KeyError here and IndexError for no rows.
        (([[0.9, 0.1]], NAMES, [[0, 7]]), [{"cat": 0.9, "7": 0.1}]),
        (([], NAMES), []),
    ],
)
def test_probabilities_get_names(given: Any, expected: list[dict[str, float]]) -> None:
    answers = map_class_to_label(*given)
    assert answers == expected
    assert [list(one) for one in answers] == [list(one) for one in expected]


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="Mapping must be a dict"):
        map_class_to_label([[0.9]], ["a"], [[0]])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Convert classes to list"):
        map_class_to_label("abc", NAMES)


def test_only_the_modules_own_classes_are_listed() -> None:
    module = ModuleType("own")
    base = type("Base", (), {"__module__": "own"})
    derived = type("Derived", (base,), {"__module__": "own"})
    foreign = type("Foreign", (base,), {"__module__": "elsewhere"})
    module.__dict__.update(Derived=derived, Base=base, Foreign=foreign, function=print)
    assert list_classes_from_module(module) == [base, derived]
    assert list_classes_from_module(module, derived) == [derived]


@pytest.mark.parametrize(("name", "prefix"), [("json.JSONDecoder", None), ("JSONDecoder", "json")])
def test_a_class_is_imported_by_its_name(name: str, prefix: str | None) -> None:
    assert import_class(name, prefix) is JSONDecoder


@pytest.mark.parametrize("name", ["json.Nothing", "json.decoder:JSONDecoder", "Nothing", "no_such_module.X"])
def test_a_class_that_is_not_there_is_an_import_error(name: str) -> None:
    with pytest.raises(ImportError):
        import_class(name)
