"""Settings written into a penstock.toml that people wrote: only the lines that change, every comment stays. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from penstock.errors import ConfigError

_HEADER = re.compile(r"\s*\[(?!\[)\s*(?P<path>[^\]]+?)\s*\]\s*(#.*)?$")
_ANY_HEADER = re.compile(r"\s*\[")
_KEY = re.compile(r"(?P<lead>\s*)(?P<key>[A-Za-z0-9_-]+)\s*=\s*(?P<rest>.*)$")
# Possessive where spaces may follow: a line of 50,000 of them is read once.
_REMARK = re.compile(r"""(?P<value>"[^"]*"\s*+|'[^']*'\s*+|\[[^\[\]#"'{]*+\]\s*+|[^#"'\[{]*+)(?P<remark>(?:#.*)?)$""")


def with_settings(text: str, table: str, values: Mapping[str, Any], *, name: str = "") -> str:
    """`text` with `values` set in `[table]`, or `[table.name]` where a name is given; the table is added if it is not there.

    Raises `ConfigError` when the file says the same in a way that is not understood here (an inline table, a value over several
    lines); nothing is guessed: the new text is read again and compared with what it should say.
    """
    path = (table, name) if name else (table,)
    wanted = _wanted(tomllib.loads(text), path, values)
    lines = text.splitlines()
    start = _table_at(lines, path)
    if start is None:
        lines += [*([""] if lines else []), f"[{'.'.join(_part(part) for part in path)}]"]
        start = len(lines) - 1
    edited = _set(lines, start, values)
    result = "\n".join(edited) + "\n"
    if _read(result) != wanted:
        written = "\n".join(f"{key} = {literal(value)}" for key, value in values.items())
        raise ConfigError(
            f"[{'.'.join(path)}] is written in a way that this cannot edit", hint=f"write into it yourself:\n{written}"
        )
    return result


def _read(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _wanted(tree: dict[str, Any], path: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    below = tree
    for part in path:
        below = below.setdefault(part, {})
    below.update(values)
    return tree


def _table_at(lines: list[str], path: tuple[str, ...]) -> int | None:
    for number, line in enumerate(lines):
        header = _HEADER.match(line)
        if header and _parts(header["path"]) == path:
            return number
    return None


def _parts(path: str) -> tuple[str, ...]:
    """`models."my.model"` as its two names."""
    return tuple(part[1:-1] if part[:1] in "\"'" else part for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.\s]+", path))


def _part(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else literal(name)


def _set(lines: list[str], start: int, values: Mapping[str, Any]) -> list[str]:
    end = next((number for number in range(start + 1, len(lines)) if _ANY_HEADER.match(lines[number])), len(lines))
    missing = dict(values)
    body = []
    for line in lines[start + 1 : end]:
        found = _KEY.match(line)
        body.append(_changed(found, missing.pop(found["key"])) if found and found["key"] in missing else line)
    last = max((number + 1 for number, line in enumerate(body) if line.strip()), default=0)
    added = [f"{key} = {literal(value)}" for key, value in missing.items()]
    return [*lines[: start + 1], *body[:last], *added, *body[last:], *lines[end:]]


def _changed(found: re.Match[str], value: Any) -> str:
    """The line with the new value; what it already says stays as it is written."""
    parts = _REMARK.match(found["rest"])
    if parts is None:
        return str(found.string)
    said = parts["value"].rstrip()
    if _read(f"x = {said}") == {"x": value}:
        return str(found.string)
    return f"{found['lead']}{found['key']} = {literal(value)}{parts['value'][len(said) :]}{parts['remark']}"


def literal(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
