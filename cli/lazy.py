"""Commands that are loaded when they are called: `penstock --help` lists them from a table and imports none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

# When the command began, as near as we can tell.
STARTED_AT = time.monotonic()


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """Where a command lives (`module` has a Typer `app`) and the line the overview shows of it."""

    module: str
    help: str
    panel: str


class LazyGroup(TyperGroup):
    """A group over `table`. Listing gives stand-ins; running or completing a command loads the real one."""

    table: ClassVar[Mapping[str, CommandEntry]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        return TyperCommand(cmd_name, help=entry.help, rich_help_panel=entry.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # Its own suggestions read this dictionary.
        self.commands = {name: self.get_command(ctx, name) for name in self.table}
        name, stand_in, rest = super().resolve_command(ctx, args)
        if name is None or stand_in is None:
            return name, stand_in, rest
        command = typer.main.get_command(import_module(self.table[name].module).app)
        command.name = name
        return name, command, rest
