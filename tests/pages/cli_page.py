"""docs/reference/cli-options.md: each command of `penstock` with its arguments and options, as its `--help` has them."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from penstock.cli.lazy import StandIn
from penstock.cli.main import app
from tests.markdown import ROOT

PAGE = ROOT / "docs" / "reference" / "cli-options.md"
MARK = "<!-- commands: written by `make reference` from the commands themselves -->\n"
# An option with one meaning in at least as many commands stands once, above all of them.
COMMON = 5
# Angle brackets and bars that Markdown would read as its own.
_ESCAPED = re.compile(r"([|<*])")


@dataclass(frozen=True, slots=True)
class CliCommand:
    """A command by its words: `jobs list`; that of `penstock` itself has none. Hidden options are not among `options`."""

    words: str
    about: str
    arguments: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str], ...]
    flags: frozenset[str]
    is_group: bool
    # A group that does something without a verb.
    runs_alone: bool


def commands() -> list[CliCommand]:
    """Every command, `penstock` itself first. Loads them all, in this process."""
    return list(_below("", typer.main.get_command(app)))


def _below(words: str, command: Any) -> Iterator[CliCommand]:
    yield _read(words, command)
    for name, one in getattr(command, "commands", {}).items():
        real = one.loaded() if isinstance(one, StandIn) else one
        if not real.hidden:
            yield from _below(f"{words} {name}".strip(), real)


def _read(words: str, command: Any) -> CliCommand:
    context = command.context_class(command, info_name=words.rpartition(" ")[2] or "penstock")
    kinds: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for parameter in command.get_params(context):
        # `--help` is the same everywhere.
        if parameter.name != "help" and (shown := parameter.get_help_record(context)):
            kinds[parameter.param_type_name].append((" ".join(shown[0].split()), " ".join(shown[1].split())))
    about = (command.help or "").split("\n\n")[0]
    flags = frozenset(flag for one in command.params for flag in (*one.opts, *one.secondary_opts) if flag.startswith("-"))
    return CliCommand(
        words,
        " ".join(about.split()),
        tuple(kinds["argument"]),
        tuple(kinds["option"]),
        flags,
        hasattr(command, "commands"),
        getattr(command, "invoke_without_command", False),
    )


def common_options(found: list[CliCommand]) -> dict[str, str]:
    """What several commands share, by signature, as long as it means the same in each of them."""
    counted = Counter(option for command in found for option in command.options)
    return dict(option for option, times in counted.items() if times >= COMMON)


def rewritten(page: str) -> str:
    """Return the page with its last part brought up to date."""
    own, mark, _ = page.partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE.name} has no line {MARK!r}")
    first, *others = commands()
    shared = common_options(others)
    head = f"\n{_table('Option of many commands', (*first.options, *shared.items()))}"
    return own + mark + head + "".join(f"\n{_section(command, shared)}" for command in others)


def _section(command: CliCommand, shared: dict[str, str]) -> str:
    own = [option for option in command.options if option[0] not in shared or shared[option[0]] != option[1]]
    parts = [f"{'####' if ' ' in command.words else '###'} penstock {command.words}\n", f"{_filled(_escaped(command.about))}\n"]
    if command.arguments or own:
        parts.append(_table("Argument or option", (*command.arguments, *own)))
    if others := [f"`{_long(name)}`" for name, about in command.options if (name, about) not in own]:
        parts.append(f"{_filled('As in many commands: ' + ', '.join(others) + '.')}\n")
    return "\n".join(parts)


def _long(signature: str) -> str:
    return next(word for word in signature.replace(",", "").split() if word.startswith("--"))


def _table(head: str, rows: tuple[tuple[str, str], ...]) -> str:
    lines = "".join(f"| {_escaped(f'`{name}`')} | {_escaped(about)} |\n" for name, about in rows)
    return f"| {head} | |\n|---|---|\n{lines}"


def _escaped(text: str) -> str:
    """The text of a command in Markdown; what stands in backticks stays as it is, but for bars."""
    parts = text.split("`")
    return "`".join(_ESCAPED.sub(r"\\\1", part) if at % 2 == 0 else part.replace("|", r"\|") for at, part in enumerate(parts))


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
