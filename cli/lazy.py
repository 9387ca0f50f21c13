"""Commands that are loaded when they are called: `penstock --help` lists them from a table and imports none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

# The moment when the command began: this module is among the first that it imports.
STARTED_AT = time.monotonic()


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command: its module, the line that the overview shows, and the name of its Typer application in the module."""

    module: str
    help: str
    panel: str
    app: str = "app"

    def load(self) -> Any:
        return typer.main.get_command(getattr(import_module(self.module), self.app))


class LazyGroup(TyperGroup):
    """A group over `table`. Listing returns stand-ins; running or completing a command loads the real one."""

    table: ClassVar[Mapping[str, CommandEntry]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        return TyperCommand(cmd_name, help=entry.help, rich_help_panel=entry.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # Typer's suggestions for a mistyped name read this dictionary.
        self.commands = {name: self.get_command(ctx, name) for name in self.table}
        name, stand_in, rest = super().resolve_command(ctx, args)
        if name is None or stand_in is None:
            return name, stand_in, rest
        command = self.table[name].load()
        command.name = name
        return name, command, rest
