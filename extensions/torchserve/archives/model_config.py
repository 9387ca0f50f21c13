"""`model-config.yaml` of an archive as plain values. Only safe YAML is read: nothing in it can name code."""

from __future__ import annotations

from functools import cache
from typing import Any

from penstock.distribution import install_hint
from penstock.errors import BadArchive

MAX_CONFIG_BYTES = 1 << 20
_MAX_VALUES = 100_000
# Mappings that others merge (`<<: *name`) are written out in each, so that a few lines could become billions of members: how
# many one mapping may merge, and how many members all those that merge may have together.
_MAX_MERGED, _MAX_MEMBERS = 100, 10_000
# The longest number. Some notations take time that grows with the square of their length.
_MAX_NUMBER_CHARS = 400
_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def read_config(data: bytes, name: str, archive: str) -> dict[str, Any]:
    """The whole file; empty if it holds nothing. Raises `BadArchive`."""
    if len(data) > MAX_CONFIG_BYTES:
        raise BadArchive(f"{archive}: {name} has more than {MAX_CONFIG_BYTES:,} bytes", hint="keep data in a file of its own")
    parsed = read_yaml(data, f"{archive}: {name}")
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise BadArchive(
            f"{archive}: {name} holds {type(parsed).__name__}, not settings", hint="write lines such as batchSize: 8"
        )
    return {str(key): value for key, value in parsed.items()}


def read_yaml(data: bytes, where: str) -> Any:
    """The values of a YAML document. Raises `BadArchive`."""
    try:
        # Few models have such a file, so the library is loaded only for these.
        import yaml
    except ImportError as missing:
        raise BadArchive(f"{where} cannot be read: {missing}", hint=install_hint("torchserve")) from missing
    try:
        parsed = _bounded_loader()(data).get_single_data()
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        # The last three are what the library raises for tags that do not fit what follows them, as in `!!bool maybe`.
        raise BadArchive(f"{where} is not valid YAML: {' '.join(str(error).split())}", hint="correct the file") from error
    except RecursionError as error:
        raise BadArchive(f"{where} nests too deep to be read", hint="write it with fewer levels") from error
    _check_extent(parsed, where)
    return parsed


@cache
def _bounded_loader() -> Any:
    """The library's loader of plain values, which refuses an expensive document before it builds the values."""
    import yaml

    class BoundedLoader(yaml.SafeLoader):  # type: ignore[misc]  # the library has no types
        _members = 0

        def flatten_mapping(self, node: Any) -> None:
            merged = [value for key, value in node.value if key.tag == _MERGE]
            if sum(len(one.value) if isinstance(one, yaml.SequenceNode) else 1 for one in merged) > _MAX_MERGED:
                raise ValueError(f"a mapping merges more than {_MAX_MERGED} others")
            super().flatten_mapping(node)
            self._members += len(node.value) if merged else 0
            if self._members > _MAX_MEMBERS:
                raise ValueError(f"the mappings that merge others have more than {_MAX_MEMBERS:,} members")

        def construct_scalar(self, node: Any) -> Any:
            if node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER_CHARS:
                raise ValueError(f"a number has more than {_MAX_NUMBER_CHARS} characters")
            return super().construct_scalar(node)

    return BoundedLoader


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
