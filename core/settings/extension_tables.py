"""The tables of settings that extensions bring: which there are, and what the engine asks of one.

A table is loaded where the settings have it, or where its own extension asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError
from pydantic.fields import FieldInfo

from penstock.errors import ConfigError
from penstock.extension import installed, load_part
from penstock.model_spec import ModelInfo, ModelSpec
from penstock.settings.faults import explain

if TYPE_CHECKING:
    from penstock.settings.keys import Credentials
    from penstock.settings.layers import Layer
    from penstock.settings.tables import Settings

# Annotates a text that is the path of a file or folder, relative to the settings file.
FILE = "file"


class ExtensionTable:
    """Base of a table that an extension brings, beside a class of pydantic's. Each field has a default.

    The methods are what the engine asks; a table overrides those that it has an answer to. `gone`: settings that went, and
    what holds instead.
    """

    gone: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def layer(cls, tree: Mapping[str, Any], *, need_files: bool) -> Layer | None:
        """The settings that this table of a merged, unchecked `tree` stands for. What users write stands over them."""
        return None

    @classmethod
    def added(cls, name: str, version: str, table: Mapping[str, Any]) -> ModelSpec | None:
        """The spec of a version that is added at run time; None if it is none of this table's. Raises `ConfigError`."""
        return None

    def faults(self, settings: Settings) -> Iterable[str]:
        """What is wrong with the table beside the others, in whole sentences."""
        return ()

    def specs(self) -> Sequence[ModelSpec]:
        """Models without code of their own, which the extension drives."""
        return ()

    def infos(self) -> Sequence[ModelInfo]:
        """What a gateway knows of these models before a worker reports."""
        return ()

    def only(self, names: Collection[str]) -> Self:
        """The table of a worker that serves only these models."""
        return self

    def credentials(self) -> Credentials | None:
        """None: callers send API keys and nothing else."""
        return None

    def addresses(self, settings: Settings, url: str) -> Mapping[str, str]:
        """What else is served, by a word, for the lines of `penstock up`. `url` is the gateway's."""
        return {}


class ExtensionFields:
    """Base of the fields that an extension adds to the table of each version, of each model, or of each key, beside `Table`."""

    @classmethod
    def fault(cls, table: Mapping[str, Any], said: Set[str]) -> str:
        """Why the settings of one version contradict each other; empty if they do not. `said`: which settings were written."""
        return ""

    @classmethod
    def of_spec(cls, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fields of the version's `ModelSpec`."""
        return {}


@cache
def version_fields() -> tuple[type[Any], ...]:
    """What the installed extensions add to the table of a version."""
    return tuple(load_part(extension.version_settings) for extension in installed() if extension.version_settings)


@cache
def model_fields() -> tuple[type[Any], ...]:
    """What the installed extensions add to the table of a model alone."""
    return tuple(load_part(extension.model_settings) for extension in installed() if extension.model_settings)


@cache
def key_fields() -> tuple[type[Any], ...]:
    """What the installed extensions add to the table of a key."""
    return tuple(load_part(extension.key_settings) for extension in installed() if extension.key_settings)


@cache
def table_parts() -> dict[str, str]:
    """Where the class of each extension's table is, by the name of the table. Raises `ConfigError` if two have one name."""
    parts: dict[str, str] = {}
    for extension in installed():
        if twice := parts.keys() & extension.settings.keys():
            raise ConfigError(f"two extensions have the table {', '.join(sorted(twice))}; uninstall one of them")
        parts |= extension.settings
    return parts


def table_class(name: str) -> type[BaseModel] | None:
    """None if no extension has a table of this name."""
    part = table_parts().get(name)
    return load_part(part) if part else None


def tables_in(tree: Mapping[str, Any]) -> dict[str, type[Any]]:
    """The classes of the tables of extensions in a merged tree."""
    return {name: load_part(part) for name, part in table_parts().items() if name in tree}


def checked_tables(tree: Mapping[str, Any], origins: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The tables of extensions in a merged tree, and the faults of those that are wrong."""
    tables, faults = dict[str, Any](), list[str]()
    for name, kind in tables_in(tree).items():
        try:
            tables[name] = kind.model_validate(tree[name])
        except ValidationError as invalid:
            faults += explain(invalid, kind, origins, at=name)
    return tables, faults


def hidden_settings() -> set[str]:
    """The paths of extensions' settings that are never shown: the fields that their tables keep out of `repr`."""
    kinds = {name: table_class(name) for name in table_parts()}
    return {f"{name}.{key}" for name, kind in kinds.items() if kind for key, own in kind.model_fields.items() if not own.repr}


def driven_spec(name: str, version: str, table: Mapping[str, Any]) -> ModelSpec | None:
    """The spec of a version that is added at run time and that an extension drives; None: it has a source.

    Raises `ConfigError`.
    """
    kinds: list[type[ExtensionTable]] = [load_part(part) for part in table_parts().values()]
    specs = (kind.added(name, version, table) for kind in kinds)
    return next((spec for spec in specs if spec is not None), None)


def is_mapping(name: str) -> bool:
    """Whether the table of this name holds tables by names that users choose, as `models` does."""
    kind = table_class(name)
    return kind is not None and issubclass(kind, RootModel)


def is_located(path: tuple[str, ...]) -> bool:
    """Whether the setting at `path` is a file or folder of an extension's table."""
    field = _field_at(path)
    return field is not None and (FILE in field.metadata or Path in (field.annotation, *get_args(field.annotation)))


def is_list(path: tuple[str, ...]) -> bool:
    """Whether the setting at `path` is a list of an extension's table. In the environment its items are separated by commas."""
    field = _field_at(path) if len(path) == 2 else None
    return field is not None and get_origin(field.annotation) is tuple


def _field_at(path: tuple[str, ...]) -> FieldInfo | None:
    kind = table_class(path[0])
    if kind is not None and issubclass(kind, RootModel):
        # A mapping of names to tables.
        kind, path = get_args(kind.model_fields["root"].annotation)[1], path[1:]
    return kind.model_fields.get(path[1]) if kind is not None and len(path) == 2 else None
