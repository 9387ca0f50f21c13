"""Reads config.properties: the properties of Java, with TorchServe's `$$VARIABLE$$` and `TS_<KEY>`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock.errors import ConfigError

_VARIABLE = re.compile(r"\$\$([A-Za-z_][A-Za-z0-9_]*)\$\$")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.S)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# The key ends at the first of these that no backslash stands before.
_KEY_END = re.compile(r"(?<!\\)(?:\\\\)*[=:\s]")
_ENVIRONMENT = "enable_envvars_config"
_PREFIX = "TS_"


def read_properties(text: str) -> dict[str, str]:
    """Key and value of each property; of one that is set twice, the last."""
    return dict(_pair(line) for line in _logical_lines(text))


def with_environment(properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The properties with the variables that they name, and where they allow it, those that `TS_<KEY>` overrides.

    Raises `ConfigError` for a variable that is not set.
    """
    merged = dict(properties)
    if merged.get(_ENVIRONMENT, "").strip().lower() == "true":
        own = {name.removeprefix(_PREFIX).lower(): value for name, value in environment.items() if name.startswith(_PREFIX)}
        # The name of the file itself is not a setting.
        merged |= {key: value for key, value in own.items() if key != "config_file"}
    faults = sorted({f"{key}: the variable {name} is not set" for key, name in _named(merged) if name not in environment})
    if faults:
        raise ConfigError("config.properties names environment variables that are missing:", faults=faults)
    return {key: _VARIABLE.sub(lambda name: environment[name[1]], value) for key, value in merged.items()}


def _named(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, value in properties.items():
        yield from ((key, name) for name in _VARIABLE.findall(value))


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments; a line that ends with an odd number of backslashes goes on in the next."""
    begun = ""
    for natural in text.splitlines():
        line = natural.lstrip(" \t\f")
        if not begun and (not line or line[0] in "#!"):
            continue
        begun += line
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            # What follows a line that is a backslash alone may be empty or look like a comment.
            begun = begun or " "
            continue
        yield begun.lstrip(" ")
        begun = ""
    if begun.strip():
        yield begun.lstrip(" ")


def _pair(line: str) -> tuple[str, str]:
    end = _KEY_END.search(line)
    if end is None:
        return _unescaped(line), ""
    key, rest = line[: end.end() - 1], line[end.end() - 1 :]
    value = re.sub(r"^[ \t\f]*[=:]?[ \t\f]*", "", rest, count=1)
    return _unescaped(key), _unescaped(value)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda one: chr(int(one[1][1:], 16)) if len(one[1]) > 1 else _ESCAPED.get(one[1], one[1]), text)
