"""Sweep files: what to search, as YAML or TOML. Each key is a dimension, each value the list of its values to try.

batch_size: [1, 2, 4, 8]
slots: [1, 2]
precision: [fp32, bf16]
processors: [cpu, gpu]
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.distribution import install_hint
from penstock.errors import BadRequest

_HINT = "docs/reference/tune.md describes sweep files"
# Names in sweep files of other tools -> our key.
_FORMER = {
    "processors": "device",
    "max_batch_size": "batch_size",
    "batch_delay": "max_wait_s",
    "max_batch_delay": "max_wait_s",
}
_SUFFIXES = (".toml", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class _Dimension:
    """The kind of a dimension's values: `read` returns the value to search, or raises ValueError."""

    words: str
    read: Callable[[Any], Any]


def read_sweep(path: Path) -> dict[str, list[Any]]:
    """The dimensions of the file under penstock's names. Raises `BadRequest`, also for YAML if PyYAML is not installed."""
    if path.suffix not in _SUFFIXES:
        raise BadRequest(f"{path.name} is not a sweep file: its name must end in {', '.join(_SUFFIXES)}", hint=_HINT)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise BadRequest(f"the sweep file {path} cannot be read: {fault}", hint=_HINT) from fault
    given = _from_toml(text, path) if path.suffix == ".toml" else _from_yaml(text, path)
    if not isinstance(given, dict) or not given:
        raise BadRequest(f"the sweep file {path} holds no dimensions; write, for example, batch_size: [1, 2, 4, 8]", hint=_HINT)
    return sweep_of(given)


def sweep_of(given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The dimensions, checked and under penstock's names; a single value becomes a list of one. Raises `BadRequest`."""
    sweep: dict[str, list[Any]] = {}
    for key, value in given.items():
        name = _FORMER.get(key, key)
        if name not in _KINDS:
            known = ", ".join([*_KINDS, *_FORMER])
            raise BadRequest(f"a sweep has no dimension {key!r}; its dimensions are {known}", hint=_HINT)
        if name in sweep:
            raise BadRequest(f"{key} and {name} are one dimension; write one of them", hint=_HINT)
        sweep[name] = _values(key, value if isinstance(value, list) else [value])
    return sweep


def _values(key: str, given: list[Any]) -> list[Any]:
    """Each value once, in the order of the file."""
    kind = _FORMER_KINDS.get(key) or _KINDS[key]
    try:
        read = [kind.read(value) for value in given]
    except ValueError as fault:
        raise BadRequest(f"{key}: {fault} is not {kind.words}", hint=_HINT) from fault
    if not read:
        raise BadRequest(f"{key} has no values; leave the line out or write some", hint=_HINT)
    return list(dict.fromkeys(read))


def _from_toml(text: str, path: Path) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise BadRequest(f"{path} is not TOML: {fault}", hint=_HINT) from fault


def _from_yaml(text: str, path: Path) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as missing:
        raise BadRequest(
            f"{path} is YAML, and PyYAML is not installed", hint=f"{install_hint('sweep')}, or write the sweep as TOML"
        ) from missing
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        raise BadRequest(f"{path} is not YAML: {' '.join(str(fault).split())}", hint=_HINT) from fault


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(repr(value))
    return value


def _threads(value: Any) -> int | str:
    return "auto" if value == "auto" else _count(value)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < float("inf"):
        raise ValueError(repr(value))
    return float(value)


def _milliseconds(value: Any) -> float:
    return _seconds(value) / 1e3


def _device(value: Any) -> str:
    if not isinstance(value, str) or not (value == "cpu" or value.startswith("cuda")):
        raise ValueError(repr(value))
    return value


def _processor(value: Any) -> str:
    return "cuda" if value == "gpu" else _device(value)


def _one_of(*words: str) -> _Dimension:
    def read(value: Any) -> str:
        # YAML reads an unquoted off as false.
        word = "off" if value is False else value
        if word not in words:
            raise ValueError(repr(value))
        return str(word)

    return _Dimension(f"one of {', '.join(words)}", read)


_COUNT = _Dimension("a whole number from 1 on", _count)
# Names and values are those of a model's table in penstock.toml, where `batch_size` is called max_batch_size.
_KINDS = {
    "batch_size": _COUNT,
    "max_wait_s": _Dimension("a number of seconds", _seconds),
    "slots": _COUNT,
    "threads": _Dimension("a whole number from 1 on, or auto", _threads),
    "device": _Dimension("cpu, cuda or cuda:0", _device),
    "runtime": _one_of("auto", "torch", "onnx", "tensorrt"),
    "precision": _one_of("fp32", "tf32", "bf16", "fp16"),
    "compile": _one_of("off", "default", "reduce-overhead", "max-autotune"),
    "pinning": _one_of("cores", "none"),
    "placement": _one_of("dedicated", "shared"),
}
_DELAY = _Dimension("a number of milliseconds", _milliseconds)
_FORMER_KINDS = {
    "processors": _Dimension("cpu, gpu or cuda:0", _processor),
    "batch_delay": _DELAY,
    "max_batch_delay": _DELAY,
}
