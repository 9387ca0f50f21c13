"""Kinds of sources of models that extensions bring, such as archives: what the engine asks of one before a child loads it.

A child asks nothing here: what loads such a source in it is named by `ModelSpec.loader`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.extension import installed, load_part
from penstock.model_spec import ModelSpec

if TYPE_CHECKING:
    from penstock.model_cache.entries import Lock
    from penstock.settings.layers import Layer


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Where sources are made ready: the models' cache in `folder`, and the bytes that pip may take for one model.

    `hold` keeps a lock, without which what it is for may be deleted. `say` tells progress, `note` an event with its fields, and
    `warn` an event that an operator should read.
    """

    folder: Path
    max_bytes: int
    install_max_bytes: int
    hold: Callable[[Lock], None]
    say: Callable[[str], None]
    note: Callable[[str, Mapping[str, Any]], None]
    warn: Callable[[str, Mapping[str, Any]], None]


class SourceKind(ABC):
    """One kind. An instance is made wherever sources are read, so its module is cheap; the methods import what they need.

    `name` in words, as in "its archive needs". `endings` are those of files. The origin of a setting that such a source says
    begins with `origin`.
    """

    name: str
    origin: str
    endings: tuple[str, ...] = ()

    @abstractmethod
    def fits(self, source: str) -> bool:
        """Whether a source is of this kind, here or at an address."""

    @abstractmethod
    def is_model(self, folder: Path, options: Mapping[str, Any]) -> bool:
        """Whether a folder is a source of this kind that can be loaded with these options."""

    @abstractmethod
    def model_name(self, path: Path) -> str:
        """The name of the model in it, whatever is wrong with it."""

    @abstractmethod
    def layer(self, tree: Mapping[str, Any]) -> Layer:
        """What such sources in a merged, unchecked tree of settings say. What users write stands over it."""

    @abstractmethod
    def settings(self, source: str, options: Mapping[str, Any], models_dir: Path) -> dict[str, Any]:
        """What one source says of its version, as a table of settings. It always says the whole batch policy."""

    @abstractmethod
    def faults(self, spec: ModelSpec) -> list[str]:
        """What is wrong with a source on this machine, before a worker loads it."""

    @abstractmethod
    def missing_packages(self, spec: ModelSpec) -> dict[str, str]:
        """The requirements of the source that are not installed here and that no worker will install, by package. Raises
        `HandlerLoadError`.
        """

    @abstractmethod
    def opened(self, spec: ModelSpec, context: SourceContext) -> ModelSpec:
        """The spec as a child gets it, with its `loader`. Raises `PenstockError`."""


@cache
def source_kinds() -> tuple[SourceKind, ...]:
    """The kinds that the installed extensions bring."""
    return tuple(load_part(part) for extension in installed() for part in extension.source_kinds)


def kind_of(source: str) -> SourceKind | None:
    """None for the engine's own sources: code and model files."""
    return next((kind for kind in source_kinds() if kind.fits(source)), None)
