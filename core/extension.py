"""What an extension declares: the places of its parts, each loaded by the process that needs it (docs/design/extensions.md).

A part is named as `module:attribute`, so that a declaration imports none of its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from penstock.errors import ConfigError

GROUP = "penstock.extensions"


@dataclass(frozen=True, slots=True)
class Extension:
    """One capability. `name` is that of its folder and of its entry point in the group `penstock.extensions`."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if wrong := [part for part in self.settings.values() if ":" not in part]:
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
