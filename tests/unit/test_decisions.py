"""docs/design: every decision has an id, a date, a status and its rejected alternatives; code cites only existing ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.markdown import ROOT

FOLDER = ROOT / "docs" / "design"
TOPICS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
HEADING = re.compile(r"^### (D(\d+) .+)$", re.MULTILINE)
STATUS = re.compile(r"^\d{4}-\d\d-\d\d[^\n]* · (in force|replaced by)")
CITED = re.compile(r"(?:#|--) .*?\bD(\d+)\b")
BESIDE = re.compile(r"D(\d+): docs/design/([\w-]+\.md)")
CODE_FOLDERS = (
    "core",
    "broker",
    "handlers",
    "workers",
    "gateway",
    "client",
    "extensions",
    "runs",
    "embedded",
    "loadtest",
    "tune",
    "cli",
    "benchmarks",
)


def sections() -> Iterator[tuple[Path, int, str]]:
    """Return the page, the number and the text of each decision."""
    for page in TOPICS:
        for part in re.split(r"^(?=### )", page.read_text("utf-8"), flags=re.MULTILINE)[1:]:
            found = HEADING.match(part)
            assert found, f"{page.name}: {part.splitlines()[0]!r} has no id"
            yield page, int(found[2]), part.partition("\n")[2].strip()


SECTIONS = list(sections())


def test_ids_are_unique_and_none_is_missing() -> None:
    assert sorted(number for _, number, _ in SECTIONS) == list(range(1, len(SECTIONS) + 1))
    assert len(SECTIONS) >= 49


@pytest.mark.parametrize(("page", "number", "text"), SECTIONS, ids=[f"D{number}" for _, number, _ in SECTIONS])
def test_a_decision_has_a_date_a_status_and_what_was_rejected(page: Path, number: int, text: str) -> None:
    assert STATUS.match(text), f"{page.name}: D{number} begins {text[:40]!r}"
    assert "\n**Decision.** " in text
    assert "\n**Rejected.** " in text


def test_the_index_lists_every_decision_by_its_heading() -> None:
    listed = re.findall(r"^\| D(\d+) \| \[(.+)\]\(([\w-]+\.md)#", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE)
    headings = {(str(number), page.name) for page, number, _ in SECTIONS}
    assert {(number, page) for number, _, page in listed} == headings
    titles = {f"D{number} {title}" for number, title, _ in listed}
    assert titles == {heading for page in TOPICS for heading, _ in HEADING.findall(page.read_text("utf-8"))}


def test_a_page_that_is_named_beside_a_decision_has_it() -> None:
    pages = {number: page.name for page, number, _ in SECTIONS}
    files = [path for folder in CODE_FOLDERS for suffix in ("*.py", "*.lua") for path in (ROOT / folder).rglob(suffix)]
    beside = [found for path in files for found in BESIDE.findall(path.read_text("utf-8"))]
    assert [(number, page) for number, page in beside if pages.get(int(number)) != page] == []


def test_code_cites_only_decisions_that_exist() -> None:
    known = {number for _, number, _ in SECTIONS}
    files = [path for folder in CODE_FOLDERS for suffix in ("*.py", "*.lua") for path in (ROOT / folder).rglob(suffix)]
    cited = {(str(path.relative_to(ROOT)), int(number)) for path in files for number in CITED.findall(path.read_text("utf-8"))}
    assert [f"{path}: D{number}" for path, number in sorted(cited) if number not in known] == []
