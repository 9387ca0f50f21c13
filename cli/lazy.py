"""Commands that are loaded on call: `penstock --help` lists them from a table and imports none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand

from penstock.errors import ConfigError
from penstock.extension import Verb, load_part

# The time when the command began: this module is one of its first imports.
STARTED_AT = time.monotonic()
_ADDED = "penstock.added"


class StandIn(TyperCommand):
    """A verb in the list of its group. Its command is loaded to run, to complete, or to show help."""

    def __init__(self, name: str, verb: Verb) -> None:
        super().__init__(name, help=verb.help, rich_help_panel=verb.panel or None)
        self._verb = verb

    def loaded(self) -> Any:
        command = load(self._verb)
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.loaded().make_context(info_name, args, parent=parent, **extra)


def stand_ins(table: Mapping[str, Verb]) -> dict[str, Any]:
    return {name: StandIn(name, verb) for name, verb in table.items()}


def load(verb: Verb) -> Any:
    """The command of a verb, with the options of extensions."""
    command = typer.main.get_command(load_part(verb.part))
    own: dict[str, Any] = vars(command).get("commands", {})
    if twice := own.keys() & verb.more.keys():
        raise ConfigError(f"an extension brings a verb that {verb.part} has: {', '.join(sorted(twice))}")
    own.update(stand_ins(verb.more))
    for name, part in ((name, part) for name, parts in verb.options.items() for part in parts):
        _add_options(own[name] if name else command, part)
    show_brackets(command)
    return command


def _add_options(command: Any, part: str) -> None:
    """Give a command the parameters of the function `part` as options. `added` returns the function's result."""
    alone = typer.Typer(add_completion=False)
    alone.command()(load_part(part))
    options = typer.main.get_command(alone)
    if twice := {one.name for one in command.params} & {one.name for one in options.params}:
        raise ConfigError(f"an extension brings an option that {command.name} has: {', '.join(sorted(map(str, twice)))}")
    command.params += options.params
    vars(command)["invoke"] = partial(_invoke, command.invoke, options)


def _invoke(invoke: Any, options: Any, context: Any) -> Any:
    given = {one.name: context.params.pop(one.name) for one in options.params}
    context.meta[_ADDED] = {**added(context), **options.callback(**given)}
    return invoke(context)


def added(context: typer.Context) -> dict[str, Any]:
    """The arguments that the options of extensions add to the running command's call of the client."""
    options: dict[str, Any] = context.meta.get(_ADDED, {})
    return options


def show_brackets(command: Any) -> None:
    """Let `--help` of a command and its subcommands show `[serve]` unchanged.

    Typer reads every help text as Rich's markup, where that is a style, and has no mode for plain text.
    """
    vars(command)["format_help"] = partial(_format_help, command)
    for one in getattr(command, "commands", {}).values():
        show_brackets(one)


def _format_help(command: Any, context: Any, formatter: Any) -> None:
    type(command).format_help(_escaped(command), context, formatter)


def _escaped(part: Any) -> Any:
    """A copy of a command, or of a parameter, whose texts Rich shows unchanged."""
    from rich.markup import escape

    twin = copy(part)
    for name in ("help", "epilog"):
        if text := getattr(part, name, None):
            setattr(twin, name, escape(text))
    if hasattr(part, "params"):
        twin.params = [_escaped(one) for one in part.params]
    if hasattr(part, "commands"):
        twin.commands = {name: _escaped(one) for name, one in part.commands.items()}
    return twin
