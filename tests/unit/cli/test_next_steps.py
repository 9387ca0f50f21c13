"""Commands that are printed as the next step: each exists with these options, and finds what the printing command found."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.core import TyperGroup

from penstock.cli.completion import completed
from penstock.cli.main import app

# Typer brings its own copy of click, and exports only one of its errors.
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
ROOT = Path(__file__).parents[3]
PACKAGES = ("broker", "cli", "client", "core", "extensions", "gateway", "handlers", "loadtest", "runs", "tune", "workers")
# In backticks, or after a colon to the end of the sentence.
PRINTED = re.compile(r"`penstock ([a-z][^`]*)`|: penstock ([a-z][^`;(\n]*)")


def texts(path: Path) -> Iterator[str]:
    """The strings of a file that may name a command, a letter in place of each value that is filled in.

    Comments and docstrings are no output.
    """
    source = path.read_text("utf-8")
    if "penstock " not in source:
        return
    nodes = list(ast.walk(ast.parse(source)))
    silent = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    silent |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value


def is_complete(command: str) -> bool:
    """Whether a command can be run without arguments; else the text only names it, as in "make one with `keys new`"."""
    try:
        parse(command.split())
    except UsageError as fault:
        if type(fault).__name__ not in ("MissingParameter", "NoArgsIsHelpError"):
            raise
        return False
    except typer.Exit:
        # `penstock run` alone shows its help.
        return False
    return True


@cache
def printed_commands() -> list[str]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = [match for path in files for text in texts(path) for match in PRINTED.finditer(text)]
    pages = (ROOT / "gateway" / "dashboard" / "templates").glob("*.html")
    found += [match for page in pages for match in re.finditer(r"<code>penstock ([^<{]*)()</code>", page.read_text("utf-8"))]
    commands = {re.split(r", | or |\. |\{", (match[1] or match[2]).replace("...", "x"))[0].strip(" .") for match in found}
    return sorted(command for command in commands if not re.fullmatch(r"[a-z-]+( [a-z-]+)?", command) or is_complete(command))


def parse(words: list[str]) -> None:
    """Parse a command line as `penstock` does, and run nothing. Raises what click raises for wrong usage."""
    group = typer.main.get_command(app)
    context = group.make_context("penstock", words, resilient_parsing=False)
    # `penstock models` runs without a verb.
    while isinstance(group, TyperGroup) and [*context._protected_args, *context.args]:
        name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)
        # What stands for the command in its group has loaded the real one.
        group = context.command


def test_the_commands_that_are_printed_are_found() -> None:
    assert len(printed_commands()) > 20


@pytest.mark.parametrize("command", printed_commands())
def test_every_printed_command_exists_with_its_options(command: str) -> None:
    # `--help` is an early exit, not a fault.
    with suppress(typer.Exit):
        parse(shlex.split(command))


@pytest.mark.parametrize("command", ["run resume", "run resume --no-such-option RUN", "nothing", "jobs show"])
def test_a_command_that_does_not_exist_would_be_found_out(command: str) -> None:
    with pytest.raises(UsageError):
        parse(shlex.split(command))


HERE = ["run", "double", "in.jsonl", "-o", "out.jsonl", "--state-dir", "my state", "-c", "other.toml"]
STORE = " --config other.toml --state-dir 'my state'"


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("penstock run resume abc", f"penstock run resume abc{STORE}"),
        ("look with `penstock run list`, then go on", f"look with `penstock run list{STORE}`, then go on"),
        ("complete it first: penstock run resume abc.", f"complete it first: penstock run resume abc{STORE}."),
        ("`penstock run show x --config mine.toml`", "`penstock run show x --config mine.toml --state-dir 'my state'`"),
        ("`penstock doctor` says what is wrong", "`penstock doctor` says what is wrong"),
    ],
)
def test_a_printed_command_gets_the_options_that_lead_to_the_same_store(text: str, whole: str) -> None:
    assert completed(text, HERE) == whole


def test_commands_that_ask_a_gateway_get_its_address_and_never_a_key() -> None:
    given = ["call", "m", "1", "--url=http://h:1", "--api-key", "secret"]
    text = "job 1 continues: penstock jobs show 1, or penstock jobs cancel 1"
    whole = "job 1 continues: penstock jobs show 1 --url http://h:1, or penstock jobs cancel 1 --url http://h:1"
    assert completed(text, given) == whole


def test_a_password_is_not_printed() -> None:
    given = ["run", "--redis-url", "redis://me:secret@host:1/0"]
    assert completed("penstock run list", given) == "penstock run list --redis-url redis://me:PASSWORD@host:1/0"


def test_without_such_options_nothing_is_added() -> None:
    assert completed("penstock run resume abc", ["run", "resume", "abc"]) == "penstock run resume abc"
