"""Writes settings into a penstock.toml of a user: only lines of changed settings change, every comment stays. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import Table


def with_settings(text: str, table: str, values: Mapping[str, Any], *, name: str = "") -> str:
    """`text` with `values` set in `[table]`, or in `[table.name]` if a name is given; a missing table is added.

    An unchanged value keeps its notation. Raises `ConfigError` if an edit would lose a comment. The new text is parsed and
    compared with the wanted values, so that a fault of the TOML library cannot spoil the file.
    """
    # Only a search that writes its winner needs the library.
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    path = (table, name) if name else (table,)
    wanted = _wanted(tomllib.loads(text), path, values)
    try:
        document = tomlkit.parse(text)
        _set(_table_at(document, path), values)
        result = tomlkit.dumps(document)
    except (TOMLKitError, ValueError) as fault:
        raise _not_editable(path, values) from fault
    if not _says(result, wanted):
        raise _not_editable(path, values)
    return result if result.endswith("\n") else f"{result}\n"


def _wanted(tree: dict[str, Any], path: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    below = tree
    for part in path:
        below = below.setdefault(part, {})
    below.update(values)
    return tree


def _table_at(document: TOMLDocument, path: tuple[str, ...]) -> Table:
    import tomlkit

    below: Any = document
    for number, part in enumerate(path, 1):
        if part not in below:
            # `[models]` above `[models.name]` needs no line of its own.
            below[part] = tomlkit.table(is_super_table=number < len(path))
        below = below[part]
    return cast("Table", below)


def _set(table: Table, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        old = table.get(key)
        if old == value:
            continue
        if old is not None and "\n" in old.as_string():
            raise ValueError(f"{key} spans several lines, which may hold comments")
        table[key] = value


def _says(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def _not_editable(path: tuple[str, ...], values: Mapping[str, Any]) -> ConfigError:
    import tomlkit

    written = tomlkit.dumps(dict(values))
    return ConfigError(
        f"[{'.'.join(path)}] is written in a way that this cannot edit", hint=f"write into it yourself:\n{written}"
    )
