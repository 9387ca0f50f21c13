"""The inputs of a model file that does not name them itself, from the table `options.inputs`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.batches import BatchSizes
from penstock.handlers.runtimes.contract import Port
from penstock.handlers.runtimes.symbols import Symbol

# Element type of the model -> what callers send: numpy has no bfloat16, and callers do not send half precision.
ELEMENTS = {
    "float32": "float32",
    "float64": "float64",
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "bool": "bool",
}
EXAMPLE = 'inputs = { x = { dtype = "float32", shape = [3, 224, 224] } }'


@dataclass(frozen=True, slots=True)
class DeclaredInputs:
    """Inputs in the order of the model's arguments. `elements` are the model's own types, one per port."""

    ports: tuple[Port, ...]
    elements: tuple[str, ...]
    batch: BatchSizes


def declared_inputs(options: Mapping[str, Any], *, file: str, kind: str) -> DeclaredInputs:
    """The declared inputs. Raises `HandlerLoadError` with an example if the table is missing or cannot be read."""
    table = options.get("inputs")
    if not isinstance(table, dict) or not table:
        raise HandlerLoadError(
            f"{file} is {kind}, which does not say what its inputs are; declare them in the model's options, "
            f'without the batch axis (a free dimension is any name, as in ["length"]; one name is one size): {EXAMPLE}'
        )
    ports = tuple(_port(name, entry) for name, entry in table.items())
    return DeclaredInputs(ports, tuple(table[name].get("dtype", "float32") for name in table), _batch(options))


def _port(name: str, entry: Any) -> Port:
    known = isinstance(entry, dict) and set(entry) <= {"dtype", "shape"} and isinstance(entry.get("shape"), list)
    element = entry.get("dtype", "float32") if known else None
    if element not in ELEMENTS:
        raise HandlerLoadError(
            f"options.inputs.{name} cannot be read: it needs a `shape` and one of the dtypes {', '.join(ELEMENTS)}, "
            f"as in {EXAMPLE}"
        )
    symbols = {axis: Symbol(size) for axis, size in enumerate(entry["shape"]) if isinstance(size, str)}
    return Port(name, ELEMENTS[element], tuple(_dimension(name, size) for size in entry["shape"]), symbols=symbols)


def _dimension(name: str, size: Any) -> int | None:
    if isinstance(size, str) and size:
        return None
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    raise HandlerLoadError(
        f"options.inputs.{name}.shape holds {size!r}; a dimension is a number from 1, or a name if it is free. "
        "The batch axis is left out"
    )


def _batch(options: Mapping[str, Any]) -> BatchSizes:
    fixed = options.get("fixed_batch")
    if fixed is None:
        return BatchSizes()
    if not isinstance(fixed, int) or isinstance(fixed, bool) or fixed < 1:
        raise HandlerLoadError(f"options.fixed_batch is {fixed!r}; write the one batch size that the file takes, such as 1")
    return BatchSizes(fixed, fixed)
