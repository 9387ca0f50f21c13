"""A model file that was read: a callable, and what is known of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.handlers.runtimes.batches import BatchSizes
from penstock.handlers.runtimes.contract import Port
from penstock.handlers.runtimes.torch.archive import FileKind

# One tensor per port -> positional and named arguments of the module.
Arguments = Callable[[Sequence[Any]], tuple[Sequence[Any], dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Program:
    """`elements` are the names of the inputs' dtypes; `example` has one tensor per input if the file contains them."""

    kind: FileKind
    module: Any
    arguments: Arguments
    ports: tuple[Port, ...]
    elements: tuple[str, ...]
    batch: BatchSizes
    example: tuple[Any, ...] | None = None


def by_name(names: Sequence[str], parameters: Iterable[str]) -> Arguments:
    """Arguments by name if the module has parameters of these names, else by position in the declared order."""
    if set(names) <= set(parameters):
        return lambda tensors: ((), dict(zip(names, tensors, strict=True)))
    return lambda tensors: (tensors, {})
