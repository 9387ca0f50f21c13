"""One page, step by step, in a fresh folder: what a reader would do who types everything."""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tokenize
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import ConfigError
from tests.blocks.compare import json_difference, text_difference
from tests.blocks.page import Command, Step, is_whole, steps_of
from tests.blocks.terminal import Shell, Stay, TerminalError, end_group, ready_word
from tests.markdown import ROOT, name_of

# Copied into the page's folder, because a reader stands in a clone of the project.
_OF_THE_CLONE = ("examples", "compose")
_END = "\x1e"
# How long the output of a command that stays may take to come whole after its ready line.
_SETTLE_S = 5.0


class BlockError(Exception):
    """A block that did not do what the page says: its line, and why."""

    def __init__(self, line: int, what: str, why: str) -> None:
        super().__init__(f"line {line}: {what}\n{why}")


@dataclass(slots=True)
class Counts:
    """What became of a page's blocks. `compared`: shown outputs that agreed with real ones."""

    done: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)


class PageRun:
    def __init__(self, page: Path, folder: Path) -> None:
        self._page = page
        self._home, self._scratch = folder / "home", folder / "scratch"
        self._folder = self._home / "demo"
        self.counts = Counts()
        self._stays: list[Stay] = []
        self._cells: Cells | None = None
        self._output = ""
        # What was typed into consoles, and what was printed then: terminal recordings are drawn from it.
        self.transcript: list[tuple[str, str]] = []

    def run(self) -> None:
        """Raises BlockError, PageError."""
        steps = steps_of(self._page)
        self._scratch.mkdir()
        self._folder.mkdir(parents=True)
        for name in _OF_THE_CLONE:
            shutil.copytree(ROOT / name, self._folder / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
        self._shell = Shell(self._folder, _environment(self._home), self._scratch)
        try:
            for step in steps:
                self._take(step)
        finally:
            self._close()

    def _take(self, step: Step) -> None:
        take = {
            "commands": self._run_commands,
            "python": self._run_python,
            "file": self._write_file,
            "settings": self._check_settings,
            "output": self._compare_text,
            "json": self._compare_json,
            "left out": self._parse,
        }[step.kind]
        take(step)
        if step.kind == "left out":
            self.counts.left_out[step.reason] += 1
        elif not step.block.is_hidden:
            self.counts.done[step.kind] += 1

    def _run_commands(self, step: Step) -> None:
        for command in step.commands:
            started = time.monotonic()
            word = ready_word(command.text)
            try:
                if command.text.strip() == "^C":
                    self._interrupt()
                elif word:
                    self._start(command, word)
                else:
                    self._run_command(command)
            except TerminalError as failed:
                raise BlockError(command.line, command.text, str(failed)) from None
            if step.block.language == "console":
                self.transcript.append((command.text, self._output))
            self.counts.seconds[f"line {command.line}: {command.text}"] = time.monotonic() - started

    def _run_command(self, command: Command) -> None:
        status, self._output = self._shell.run(command.text)
        if command.shown is not None:
            self._compare(command.shown, self._output, command.line, command.text)
        elif status != 0:
            raise BlockError(command.line, command.text, f"it ended with the exit status {status}:\n{self._output}")

    def _start(self, command: Command, word: str) -> None:
        stay = Stay.start(command.text, self._shell.cwd, self._shell.env)
        self._stays.append(stay)
        stay.wait_until(word)
        until = time.monotonic() + _SETTLE_S
        while stay.screen.read(0.1) or (
            command.shown and time.monotonic() < until and self._difference(command.shown, stay.screen.text, goes_on=True)
        ):
            pass
        self._output = stay.screen.text
        if command.shown is not None:
            self._compare(command.shown, self._output, command.line, command.text, goes_on=True)
        if command.is_interrupted:
            rest = self._interrupt()
            if command.after_interrupt is not None:
                self._compare(command.after_interrupt, rest, command.line, f"{command.text}, after Ctrl-C")

    def _interrupt(self) -> str:
        if not self._stays:
            raise TerminalError("Ctrl-C ends the last command that stays, and none does")
        return self._stays.pop().interrupt()

    def _run_python(self, step: Step) -> None:
        if self._cells is None:
            self._cells = Cells(self._shell.env, self._scratch)
        name = f"<{name_of(self._page)}, block of line {step.block.line}>"
        failed, self._output, printed = self._cells.run(step.block.text, name, self._shell.cwd, self._shell.env)
        if failed:
            raise BlockError(step.block.line, "the Python block failed", self._output)
        for first, last, shown in shown_prints(step.block.text):
            texts = [text for line, text in printed if first <= line <= last] or ["(nothing: the line was not reached)"]
            for text in texts:
                self._compare(shown, text, step.block.line + first - 1, "the print")

    def _write_file(self, step: Step) -> None:
        path = self._shell.cwd / step.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.block.text, "utf-8")

    def _check_settings(self, step: Step) -> None:
        """A block of settings holds only what the page is about, so models without a source get one."""
        tables = tomllib.loads(step.block.text)
        bare = [name for name, table in tables.get("models", {}).items() if not {"source", "versions"} & set(table)]
        path = self._scratch / "penstock.toml"
        path.write_text(step.block.text + "".join(f'\n[models.{name}]\nsource = "model.py:Model"\n' for name in bare))
        if bare:
            path.write_text(_with_sources(step.block.text, bare))
        # Most pages need none of this, and it takes half a second to load.
        from penstock.cli.serve.setup import serve_setup

        try:
            serve_setup([], config=path, flags={}, need_files=False)
        except ConfigError as fault:
            raise BlockError(step.block.line, "these settings are refused", str(fault)) from None

    def _compare_text(self, step: Step) -> None:
        self._compare(step.block.text, self._output, step.block.line, "the output of the block before")

    def _compare_json(self, step: Step) -> None:
        got = last_json(self._output)
        if got is None:
            raise BlockError(step.block.line, "the block before printed no JSON", self._output)
        difference = json_difference(json.loads(step.block.text), got)
        if difference:
            raise BlockError(
                step.block.line, "the JSON of the block before differs", f"{difference}\n{json.dumps(got, indent=1)}"
            )
        self.counts.compared += 1

    def _parse(self, step: Step) -> None:
        fault = fault_of(step.block.language, step.block.text)
        if fault:
            raise BlockError(step.block.line, f"the block is not {step.block.language}", fault)

    def _difference(self, shown: str, got: str, *, goes_on: bool = False) -> str:
        return text_difference(shown, got, str(self._folder), goes_on=goes_on)

    def _compare(self, shown: str, got: str, line: int, what: str, *, goes_on: bool = False) -> None:
        difference = self._difference(shown, got, goes_on=goes_on)
        if difference:
            raise BlockError(line, what, difference)
        self.counts.compared += 1

    def _close(self) -> None:
        if self._cells:
            self._cells.close()
        for stay in reversed(self._stays):
            stay.close()
        self._shell.close()


class Cells:
    """The process in which the Python blocks of a page run."""

    def __init__(self, env: Mapping[str, str], scratch: Path) -> None:
        self._source = scratch / "block.py"
        self._process = subprocess.Popen(
            [str(_programs() / "python"), str(Path(__file__).with_name("cell.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
        )

    def run(self, text: str, name: str, cwd: Path, env: Mapping[str, str]) -> tuple[bool, str, list[tuple[int, str]]]:
        """Return whether the block failed, what it printed, and each print with its line."""
        self._source.write_text(text, "utf-8")
        order = {"path": str(self._source), "name": name, "cwd": str(cwd), "env": dict(env)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        printed = b""
        while printed.count(_END.encode()) < 2:
            read = os.read(self._process.stdout.fileno(), 65536)
            if not read:
                return True, printed.decode(errors="replace"), []
            printed += read
        output, told, _ = printed.decode(errors="replace").split(_END, 2)
        answer: dict[str, Any] = json.loads(told)
        return answer["failed"], output, [(line, text) for line, text in answer["printed"]]

    def close(self) -> None:
        end_group(self._process, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _programs() -> Path:
    """The folder of the programs that a page calls: another environment's if BLOCKS_PROGRAMS names it."""
    return Path(os.environ.get("BLOCKS_PROGRAMS") or Path(sys.executable).parent)


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "TMPDIR", "PENSTOCK_SERVER")}
    programs = os.pathsep.join([str(_programs()), os.environ.get("PATH", os.defpath), "/usr/sbin"])
    return {
        **kept,
        "PATH": programs,
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
        "MODELS": str(ROOT / "tests" / "blocks" / "models.py"),
    }


def _with_sources(text: str, bare: list[str]) -> str:
    """The settings with a source in the tables of these models; one that has only tables below it gets a table of its own."""
    for name in bare:
        head, source = f"[models.{name}]\n", 'source = "model.py:Model"\n'
        text = text.replace(head, head + source) if head in text else f"{head}{source}\n{text}"
    return text


def shown_prints(source: str) -> list[tuple[int, int, str]]:
    """Return the first and last line of each print that has a comment behind it, and the comment: what the print prints."""
    comments = {
        token.start[0]: token.string.lstrip("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    ends = [(call.lineno, call.end_lineno or call.lineno) for call in calls]
    return [(first, last, comments[last]) for first, last in ends if last in comments]


def last_json(printed: str) -> Any:
    """Return the JSON that an output is, or that its last lines are; None if there is none."""
    lines = printed.strip().splitlines()
    for start in range(len(lines)):
        try:
            return json.loads("\n".join(lines[start:]))
        except ValueError:
            continue
    return None


def fault_of(language: str, text: str) -> str:
    """Return why the text is no whole piece of its language; empty if it is, or if nobody can tell."""
    try:
        if language == "python":
            ast.parse(text)
        elif language == "toml":
            tomllib.loads(text)
        elif language == "json":
            json.loads(text)
        elif language == "yaml":
            list(yaml.safe_load_all(text))
        elif language in ("bash", "console"):
            commands = (
                text if language == "bash" else "".join(f"{line[2:]}\n" for line in text.splitlines() if line[:2] == "$ ")
            )
            return "" if is_whole(commands.rstrip("\n")) else "bash takes it for a command that does not end"
    except (SyntaxError, ValueError, yaml.YAMLError) as fault:
        return str(fault)
    return ""
