"""Markdown pages: their width and links, and that the paths, commands, imports and classes which they name exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.markdown import PAGES, ROOT, CodeBlock, anchors, code_blocks, links, name_of, prose

WIDTH = 120
MAPS = [ROOT / name for name in ("AGENTS.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")]
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/[\w.-]*)`")
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
# These are made by builds or by the reader.
NOT_IN_THE_TREE = {"images/", "/ui/", "build/site"}
MADE_BY_COMMANDS = {"examples/vision/build", "benchmarks/results/peers.json"}
each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def blocks(language: str) -> list[tuple[str, CodeBlock]]:
    return [(name_of(page), block) for page in PAGES for block in code_blocks(page) if block.language == language]


@each_page
def test_lines_are_at_most_120_columns_outside_tables_and_code(page: Path) -> None:
    links_alone = re.compile(r"^\s*(\[[^\]]+\]: |!?\[\S*\]\(\S+\)$|<)")
    long = [
        number for number, line in prose(page) if len(line) > WIDTH and not line.startswith("|") and not links_alone.match(line)
    ]
    assert long == []


@each_page
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        other = (page.parent / file).resolve() if file else page
        if not other.exists() or (anchor and other.suffix == ".md" and anchor not in anchors(other)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", MAPS, ids=name_of)
def test_the_maps_name_only_paths_that_exist(page: Path) -> None:
    named = {path for _, line in prose(page) for path in PATH.findall(line)} - NOT_IN_THE_TREE
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_the_pip_commands_of_readme_name_extras_and_files_that_exist_and_do_what_make_does() -> None:
    [block] = [block.text for page, block in blocks("bash") if page == "README.md" and "-m venv" in block.text]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    installs = re.findall(r"pip install -e '\.\[(\w+)\]' -c (\S+) && (.+)", block)
    assert [extra for extra, _, _ in installs] == ["onnx", "test"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for (extra, pins, command), target in zip(installs, ("demo", "test"), strict=True):
        assert extra in extras
        assert (ROOT / pins).is_file()
        rule = makefile.partition(f"\n{target}: ")[2]
        assert rule.startswith(f"$(VENV)/.installed-{extra} ")
        made = rule.splitlines()[1].strip().removeprefix("$(BIN)/")
        assert made.startswith(command)
        assert command.startswith("python -m") or (ROOT / command.removeprefix("python ")).is_file()
    assert block.count("pip install") == len(installs)


def test_the_page_for_assistants_is_one_page() -> None:
    assert len((ROOT / "AGENTS.md").read_text("utf-8").splitlines()) <= 80


@each_page
def test_paths_below_folders_of_the_tree_exist(page: Path) -> None:
    tops = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}
    named = {path for _, line in prose(page) for path in PATH.findall(line) if path.split("/")[0] in tops}
    missing = {path for path in named - MADE_BY_COMMANDS if not (ROOT / path).exists()}
    assert sorted(missing) == []


def test_architecture_names_every_folder_of_code() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    tops = [path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name not in ("tests", "build")]
    folders = {path.parent for top in tops for path in top.rglob("__init__.py")}
    names = {folder.relative_to(ROOT).as_posix() for folder in folders}
    assert sorted(name for name in names if not name.startswith("benchmarks/peers/") and f"`{name}/`" not in text) == []


def test_each_class_among_the_words_of_architecture_exists() -> None:
    words = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## Words")[2]
    rows = [line.split("|") for line in words.splitlines() if line.startswith("| ")]
    named = {name for row in rows[1:] for name in re.findall(r"`(\w+)`", row[2])}
    folders = ("core", "broker", "handlers", "workers", "gateway", "client", "cli", "extensions", "runs", "embedded")
    known = {name for folder in folders for path in (ROOT / folder).rglob("*.py") for name in CLASS.findall(path.read_text())}
    assert len(named) > 30
    assert named - known == set()


@pytest.mark.parametrize(("page", "block"), blocks("python"), ids=lambda value: value if isinstance(value, str) else "")
def test_what_python_blocks_import_of_penstock_is_there(page: str, block: CodeBlock) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "penstock":
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "penstock":
            assert hasattr(importlib.import_module("penstock"), node.attr), f"penstock.{node.attr}"


@each_page
def test_modules_that_are_run_exist(page: Path) -> None:
    named = set(re.findall(r"-m ((?:penstock|benchmarks|tests)[\w.]*\w)", page.read_text("utf-8")))
    assert sorted(name for name in named if importlib.util.find_spec(name) is None) == []


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z][a-z-]*)", page.read_text("utf-8")))
    named |= {name for block in code_blocks(page) for name in re.findall(r"^make ([a-z][a-z-]*)", block.text, re.MULTILINE)}
    assert named - targets == set()


def test_the_hooks_before_a_commit_and_a_push_call_the_parts_of_make_check() -> None:
    [parts] = re.findall(r"^check: (.+?) ##", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    [repository] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert {hook["entry"] for hook in repository["hooks"]} == {f"make {part}" for part in parts.split()}
