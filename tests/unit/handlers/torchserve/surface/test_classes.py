"""Classes of a module and classes by name, as `ts` has them."""

from __future__ import annotations

from json import JSONDecoder
from types import ModuleType

import pytest

from penstock.handlers.torchserve.surface.classes import import_class, list_classes_from_module


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
