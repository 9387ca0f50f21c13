"""The limits of the source tree (`make house`): a failure names the file and its limit."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import bars, house


@pytest.fixture(scope="module")
def found() -> list[house.Module]:
    return house.modules()


def test_the_house_is_in_order(found: list[house.Module]) -> None:
    assert house.faults(found) == []


def test_the_engine_grows_no_further(found: list[house.Module]) -> None:
    assert [str(bar) for bar in bars.bars(found) if bar.value > bar.limit] == []


def test_a_bar_that_is_passed_is_seen(found: list[house.Module]) -> None:
    text = "from penstock.extensions.splits.split import Split\nSPLITS = 'webhooks'\n"
    more = house.Module(Path("broker/a.py"), "penstock.broker.a", 2, ast.parse(text))
    assert ("penstock.broker.a", "penstock.extensions.splits.split") in bars.engine_imports([*found, more])
    assert bars.closure([*found, more], "penstock.broker.a") == {"penstock.broker.a", "penstock.extensions.splits.split"} | (
        bars.closure(found, "penstock.extensions.splits.split")
    )


def test_what_a_folder_of_tests_shares_ends_with_the_folder() -> None:
    # pytest keeps a fixture of the scope "package" until the session ends if its folder is no package: a gateway that the tests
    # of security shared announced its models into the emptied store of other tests.
    sharing = [path for path in (house.ROOT / "tests").rglob("conftest.py") if 'scope="package"' in path.read_text()]
    assert sharing
    assert [path for path in sharing if not (path.parent / "__init__.py").exists()] == []


def test_every_folder_of_a_package_is_measured(found: list[house.Module]) -> None:
    folders = {
        path.parent.relative_to(house.ROOT).as_posix() for top in house.TOPS for path in (house.ROOT / top).rglob("*.py")
    }
    measured = {one.folder for one in found}
    # A folder of folders has no module of its own.
    above = {parent.as_posix() for one in found for parent in one.path.parents}
    assert {folder for folder in folders if not house.FOREIGN.match(f"{folder}/")} <= measured | above


@pytest.mark.parametrize(
    ("importer", "imported", "back"),
    [
        ("p.high.a", "p.low.b", False),
        ("p.low.b", "p.high.a", True),
        ("p.left.a", "p.right.b", True),
        ("p.low.a", "p.low.b", False),
        ("p.low.a", "p.unknown", False),
        ("p.free.a", "p.loose.b", False),
    ],
)
def test_an_import_against_the_floors_is_seen(importer: str, imported: str, back: bool) -> None:
    rules = house._floors("p", ["high", "left | right", "free : loose", "low"])
    assert rules.is_back(importer, imported) is back


def test_faults_are_found(tmp_path: Path) -> None:
    text = "class Twice: ...\ndef long() -> None:\n" + "    x = 1\n" * 41
    one = house.Module(Path("core/a.py"), "penstock.a", 43, ast.parse(text))
    other = house.Module(Path("core/b.py"), "penstock.b", 401, ast.parse("class Twice: ...\n"))
    faults = house.faults([one, other])
    assert "core/a.py: long has 41 lines, more than 40" in faults
    assert "core/b.py: 401 lines, more than 400" in faults
    assert "class Twice: 2 meanings" in faults


def test_prose_of_more_than_120_columns_is_found_outside_tables_and_code() -> None:
    wide = "word " * 30
    assert list(house._wide_in(f"{wide}\n| {wide} |\n```\n{wide}\n```\nshort\n{wide}")) == [1, 7]
