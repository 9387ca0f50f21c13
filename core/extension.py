"""What an extension declares: the places of its parts, each loaded by the process that needs it (docs/design/extensions.md).

A part is named as `module:attribute`, so that a declaration imports none of its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import Any

from penstock.errors import ConfigError

GROUP = "penstock.extensions"


class Panel(StrEnum):
    """The parts of `penstock --help`."""

    SERVE = "Serve"
    USE = "Use"
    HELP = "Set up and inspect"


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of `penstock`: its Typer application, and the line that the overview shows before it is loaded.

    `asks_gateway`: it finds its gateway by `--url`. `more`: verbs that extensions add to this one, which is a group.
    """

    part: str
    help: str
    panel: str = ""
    asks_gateway: bool = False
    more: Mapping[str, Verb] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Extension:
    """One capability. `name` is that of its folder and of its entry point in the group `penstock.extensions`.

    `verbs`: by their words, `history`, or `models split` for a verb of a group.
    """

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    verbs: Mapping[str, Verb] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = (*self.settings.values(), *(verb.part for verb in self.verbs.values()))
        if wrong := [part for part in parts if ":" not in part]:
            raise ConfigError(f"extension {self.name!r} names parts as module:attribute, and not {', '.join(wrong)}")


@cache
def installed() -> tuple[Extension, ...]:
    """The extensions of this environment, by name: ours and those that other packages bring. Raises `ConfigError`."""
    # Reading the metadata of all packages takes milliseconds, which a model's process never pays.
    from importlib.metadata import entry_points

    found = {point.name: point.load() for point in entry_points(group=GROUP)}
    if wrong := [name for name, value in found.items() if not isinstance(value, Extension) or value.name != name]:
        raise ConfigError(f"entry points of {GROUP} that name no Extension of their own name: {', '.join(sorted(wrong))}")
    return tuple(found[name] for name in sorted(found))


def load_part(part: str) -> Any:
    """Import what `module:attribute` names."""
    module, _, attribute = part.partition(":")
    return getattr(import_module(module), attribute)
