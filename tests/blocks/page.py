"""What a page has its reader do: its code blocks as steps, in their order."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.markdown import CodeBlock, blocks_of

Kind = Literal["commands", "python", "file", "settings", "output", "json", "left out"]

# Why a block may be left out: `<!-- not run: REASON -->` in the line before it.
REASONS = {
    "a fragment": "a part of a file that the page does not show whole, or words that stand for the reader's own; it is parsed",
    "a drawing": "a picture in characters",
    "installs": "installs packages or programs; CI does that in ways of its own",
    "takes minutes": "measurements and whole test suites, which have commands of their own",
    "needs a GPU": "CI has none",
    "needs Docker": "CI has none; `make compose-test` runs such commands",
    "needs a cluster": "Kubernetes; `make helm-check` holds what can be held without",
    "needs the internet": "downloads, or a service elsewhere",
    "needs another server": "a server that CI does not have, for instance a proxy with a domain of its own",
}
_NOT_RUN = re.compile(r"not run: (.+)")
_FILE_NAME = re.compile(r"# ([\w./-]*\.\w+|Dockerfile)\n")
_LANGUAGES: dict[str, Kind] = {
    "bash": "commands",
    "console": "commands",
    "python": "python",
    "toml": "settings",
    "text": "output",
    "json": "json",
}


class PageError(Exception):
    """A page that breaks the convention, which CONTRIBUTING.md describes: the line, and what to do."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command, and the output that the page shows for it; None where it shows none."""

    text: str
    line: int
    shown: str | None = None
    is_interrupted: bool = False
    after_interrupt: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One block, and what is done with it."""

    kind: Kind
    block: CodeBlock
    commands: tuple[Command, ...] = ()
    file_name: str = ""
    reason: str = ""


@dataclass(slots=True)
class _Open:
    """A command of a console block whose lines are still being read."""

    line: int
    lines: list[str]
    shown: list[str] = field(default_factory=list)
    after: list[str] | None = None

    def close(self) -> Command:
        after = None if self.after is None else "\n".join(self.after)
        return Command("\n".join(self.lines), self.line, "\n".join(self.shown) or None, self.after is not None, after or None)


def steps_of(page: Path) -> list[Step]:
    """Return the steps of the page.

    Raises PageError.
    """
    return [_step(block) for block in blocks_of(page.read_text("utf-8"))]


def _step(block: CodeBlock) -> Step:
    left_out = _NOT_RUN.fullmatch(block.comment)
    if left_out:
        if left_out[1] not in REASONS:
            raise PageError(f"line {block.line - 2}: '{left_out[1]}' is no reason; the reasons are: {', '.join(REASONS)}")
        return Step("left out", block, reason=left_out[1])
    named = _FILE_NAME.match(block.text)
    if named:
        return Step("file", block, file_name=named[1])
    kind = _LANGUAGES.get(block.language)
    if kind is None:
        raise PageError(
            f"line {block.line - 1}: a block of the language '{block.language}' cannot be run. Use one of "
            f"{', '.join(_LANGUAGES)}, name the file in its first line (# NAME), or leave it out (<!-- not run: REASON -->)"
        )
    return Step(kind, block, commands=tuple(_commands(block)) if kind == "commands" else ())


def _commands(block: CodeBlock) -> Iterator[Command]:
    return _of_console(block) if block.language == "console" else _of_script(block)


def _of_script(block: CodeBlock) -> Iterator[Command]:
    gathered: list[str] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        gathered.append(line)
        if is_whole("\n".join(gathered)):
            if line.strip() and not line.lstrip().startswith("#"):
                yield Command("\n".join(gathered), number - len(gathered) + 1)
            gathered = []
    if gathered:
        raise PageError(f"line {block.line}: the command does not end in its block: {gathered[0]}")


def _of_console(block: CodeBlock) -> Iterator[Command]:
    current: _Open | None = None
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            if current:
                yield current.close()
            current = _Open(number, [line[2:]])
        elif current is None:
            raise PageError(f"line {number}: a console block begins with a command: $ COMMAND")
        elif not current.shown and not is_whole("\n".join(current.lines)):
            current.lines.append(line.removeprefix("> "))
        elif line.startswith("^C"):
            current.after = []
        else:
            (current.shown if current.after is None else current.after).append(line)
    if current:
        yield current.close()


def is_whole(text: str) -> bool:
    """Say whether bash takes the text as commands that end: no open quote, block or here-document, no `\\` at the end."""
    if text.endswith("\\"):
        return False
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    return checked.returncode == 0 and not checked.stderr
