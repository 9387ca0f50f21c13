"""The pages on the `penstock` command: they name what the program has, and what pages call exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.markdown import PAGES, ROOT, code_blocks, name_of, prose
from tests.pages import cli_page
from tests.pages.cli_page import CliCommand

OVERVIEW = ROOT / "docs" / "reference" / "cli.md"
# Shown as what no command has.
WRONG = "--nope"
SHELLS = ("bash", "console", "sh")
# Of every command; the first two of `penstock` itself.
EVERYWHERE = {"--install-completion", "--show-completion", "--help", "-h"}
# What stands for words of the reader's: MODEL, "...", $VARIABLE, <name>, {name}.
PLACEHOLDER = re.compile(r"[A-Z][A-Z_0-9]*|\.\.\.|[$<{].*")
# A line that the program prints.
READY = " is ready"
SPAN = re.compile(r"(?<!`)`(penstock [^`]+)`(?!`)")


@pytest.fixture(scope="module")
def known() -> dict[str, CliCommand]:
    return {command.words: command for command in cli_page.commands()}


def test_the_page_of_options_is_what_the_commands_have() -> None:
    page = cli_page.PAGE.read_text("utf-8")
    assert cli_page.rewritten(page) == page, "run `make reference`"


def test_every_command_and_option_is_on_a_page_of_the_reference(known: dict[str, CliCommand]) -> None:
    page = cli_page.PAGE.read_text("utf-8")
    headings = set(re.findall(r"^####? penstock (.+)$", page, re.MULTILINE))
    assert headings == set(known) - {""}
    # Options of `torchserve` that it accepts and ignores are hidden; the page of this command has them.
    text = page + (OVERVIEW.parent / "torchserve.md").read_text("utf-8")
    flags = {flag for command in known.values() for flag in command.flags}
    assert len(flags) > 100
    assert {flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", text)} == set()


def test_the_overview_has_a_line_for_every_command(known: dict[str, CliCommand]) -> None:
    rows = [line for _, line in prose(OVERVIEW) if line.startswith("| `penstock ")]
    missing = []
    for words in sorted(set(known) - {""}):
        group, _, verb = words.partition(" ")
        own = [row for row in rows if re.search(rf"penstock {group}(?![\w-])", row)]
        if not any(re.search(rf"(?<![\w-]){verb}(?![\w-])", row.split(" | ")[0]) for row in own):
            missing.append(words)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_calls_exists(page: Path, known: dict[str, CliCommand]) -> None:
    assert [f"{line}: {call}: {fault}" for line, call in calls(page) if (fault := fault_of(call, known))] == []


def calls(page: Path) -> Iterator[tuple[int, str]]:
    """What follows `penstock` in each call of it, in code of the prose and in blocks for a shell."""
    text = list(prose(page))
    for at, (number, line) in enumerate(text):
        # Code that goes on in the next line.
        joined = f"{line} {text[at + 1][1].strip()}" if line.count("`") % 2 and at + 1 < len(text) else line
        for found in SPAN.finditer(joined.replace(r"\|", "|")):
            if not found[1].endswith(READY):
                yield number, found[1].removeprefix("penstock ")
    for block in code_blocks(page):
        if block.language in SHELLS:
            prompt = r"\$ " if block.language == "console" else ""
            for line in re.sub(r"\\\n(> )?", " ", block.text).splitlines():
                for found in re.finditer(rf"(?:^{prompt}(?:\w+=\S+ )*|[|;&(] *)penstock ((?:(?!\$\()[^|;&#)>])+)", line):
                    yield block.line, found[1].strip()


def fault_of(call: str, known: dict[str, CliCommand]) -> str:
    """What the program would say of the call, or nothing. `a|b` are two calls."""
    words, flags = "", {*known[""].flags, *EVERYWHERE, WRONG}
    for token in tokens_of(call):
        if token == "--":
            break
        if re.match(r"--?[a-z]", token, re.IGNORECASE):
            if token.partition("=")[0] not in flags:
                return f"{token} is no option of `penstock {words}`"
        elif known[words].is_group and not PLACEHOLDER.fullmatch(token):
            below = below_of(words, token, known)
            if unknown := [name for name in below if name not in known]:
                return f"there is no `penstock {unknown[0]}`"
            words = below[0]
            flags |= {flag for name in (*below, *(["run start"] if words == "run" else [])) for flag in known[name].flags}
    return ""


def below_of(words: str, token: str, known: dict[str, CliCommand]) -> list[str]:
    """The commands that the token names; `run MODEL` is `run start MODEL`."""
    below = [f"{words} {part}".strip() for part in token.split("|")]
    return ["run start"] if words == "run" and below[0] not in known else below


def tokens_of(call: str) -> list[str]:
    try:
        return shlex.split(call)
    except ValueError:
        return call.split()


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("jobs show JOB --json", ""),
        ("jobs list|show --traceback", ""),
        ("run square in.jsonl -o out.jsonl", ""),
        ("up --prot 80", "--prot is no option of `penstock up`"),
        ("jobs retry JOB", "there is no `penstock jobs retry`"),
        ("serve", "there is no `penstock serve`"),
    ],
)
def test_a_call_of_what_does_not_exist_is_found(call: str, fault: str, known: dict[str, CliCommand]) -> None:
    assert fault_of(call, known) == fault
