"""What is known of a verb of `penstock` before it is loaded, and how the verbs of extensions join those of the engine.

This module imports nothing, so that an extension can say which verbs it brings at no cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

# The panels of `penstock --help`.
SERVE, USE, HELP = "Serve", "Use", "Set up and inspect"


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One verb: its module, the line that the overview shows, and the name of its Typer application in the module.

    `asks_gateway`: it finds its gateway by `--url`. `more`: verbs that others add to this one, which is a group.
    """

    module: str
    help: str
    panel: str = ""
    app: str = "app"
    asks_gateway: bool = False
    more: Mapping[str, CommandEntry] = field(default_factory=dict)


# By its words: "history", or "models split" for a verb of a group.
Verbs = Mapping[str, CommandEntry]


def merged(engine: Verbs, extensions: Iterable[Verbs]) -> dict[str, CommandEntry]:
    """The verbs of `penstock`: those of the engine, then those of each extension, in its group if it has two words.

    Raises `ValueError` for a verb that is there already, and for one whose group is missing.
    """
    table = dict(engine)
    for words, entry in (pair for verbs in extensions for pair in verbs.items()):
        first, _, second = words.partition(" ")
        if second and first not in table:
            raise ValueError(f"there is no group {first!r} for the verb {words!r}")
        if (second in table[first].more) if second else (first in table):
            raise ValueError(f"two extensions bring the verb {words!r}, or the engine has it")
        table[first] = replace(table[first], more={**table[first].more, second: entry}) if second else entry
    return table
