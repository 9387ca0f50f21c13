"""`model-config.yaml` of an archive as plain values. Only safe YAML is read: nothing in it can name code."""

from __future__ import annotations

from typing import Any

from penstock.errors import BadArchive

MAX_CONFIG_BYTES = 1 << 20
_MAX_VALUES = 100_000


def read_config(data: bytes, name: str, archive: str) -> dict[str, Any]:
    """The whole file; empty if it holds nothing. Raises `BadArchive`."""
    if len(data) > MAX_CONFIG_BYTES:
        raise BadArchive(f"{archive}: {name} has more than {MAX_CONFIG_BYTES:,} bytes", hint="keep data in a file of its own")
    found = read_yaml(data, f"{archive}: {name}")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadArchive(
            f"{archive}: {name} holds {type(found).__name__}, not settings", hint="write lines such as batchSize: 8"
        )
    return {str(key): value for key, value in found.items()}


def read_yaml(data: bytes, where: str) -> Any:
    """The values of a YAML document. Raises `BadArchive`."""
    try:
        # Few models have such a file, so nobody else pays for the library.
        import yaml
    except ImportError as missing:
        raise BadArchive(f"{where} cannot be read: {missing}", hint="pip install 'penstock[torchserve]'") from missing
    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        raise BadArchive(f"{where} is not valid YAML: {' '.join(str(error).split())}", hint="correct the file") from error
    except RecursionError as error:
        raise BadArchive(f"{where} nests too deep to be read", hint="write it with fewer levels") from error
    _check_extent(found, where)
    return found


def _check_extent(value: Any, where: str) -> None:
    """References (`*name`) stand for whole values, so that a short file may hold billions of them, or itself."""
    left, seen = [value], 0
    while left:
        one = left.pop()
        seen += 1
        if seen > _MAX_VALUES:
            raise BadArchive(f"{where} holds more than {_MAX_VALUES:,} values", hint="are there references that nest (*name)?")
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, (list, tuple, set)):
            left += one
