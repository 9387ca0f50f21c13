"""Finds out which shapes an AOTInductor package accepts. The package does not say, so it is tried once before it serves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.torch.declared import DeclaredInputs

_SWITCH = "AOTI_RUNTIME_CHECK_INPUTS"
_OTHER_SIZE = re.compile(r"unmatched dim value at (\d+), expected: (\d+)")
# Not 1: torch compiles size 1 apart from all other sizes.
_FREE = 2


def load_package(path: Path, device: Any) -> Any:
    return import_module("torch._inductor").aoti_load_package(str(path), device_index=device.index or -1)


def check_shapes(path: Path, device: Any, *, declared: DeclaredInputs, sizes: Sequence[int]) -> None:
    """Refuse a package compiled for other batch sizes, shapes or types than it would get, by a `HandlerLoadError`. See D47.

    Machine code compiled for three rows accepts two and answers wrongly. torch's checks detect that, but they cannot stay on:
    they also refuse a single row wherever the batch axis is free.
    """
    torch = import_module("torch")
    with _checks_on(), torch.inference_mode():
        probe = load_package(path, device)
        for rows in sizes:
            _ask(probe, _zeros(torch, declared, device, rows=rows), file=path.name)


def batch_sizes_to_ask(declared: DeclaredInputs, *, buckets: Sequence[int], limit: int) -> Sequence[int]:
    """The sizes to try: every size if there are few, else one size above 1 if there will be such batches. Pure."""
    if not declared.batch.free:
        return [declared.batch.low]
    return sorted(set(buckets)) or [min(_FREE, limit)]


def _ask(probe: Any, tensors: Sequence[Any], *, file: str) -> None:
    try:
        probe(*tensors)
    except RuntimeError as error:
        words = str(error).strip().partition("\n")[0]
        # The model may refuse zeros, or lengths of two, for reasons of its own.
        if "unmatched" in words:
            raise HandlerLoadError(_refusal(file, words)) from error


def _refusal(file: str, words: str) -> str:
    match = _OTHER_SIZE.search(words)
    if match and match[1] == "0":
        return (
            f"{file} was compiled for batches of {match[2]} alone, and would answer others wrongly; set "
            f"options.fixed_batch = {match[2]}, or compile it again with a dynamic batch axis"
        )
    return (
        f"{file} was compiled for other inputs than options.inputs declares: {words[:300]} (axis 0 is the batch); correct them"
    )


def _zeros(torch: Any, declared: DeclaredInputs, device: Any, *, rows: int) -> list[Any]:
    return [
        torch.zeros((rows, *(size or _FREE for size in port.shape)), dtype=getattr(torch, element), device=device)
        for port, element in zip(declared.ports, declared.elements, strict=True)
    ]


@contextmanager
def _checks_on() -> Iterator[None]:
    """Switch torch's checks. A package reads the switch at its first call and keeps it; a package loaded later reads it again.
    Switch torch's checks. A package reads the switch at its first call and keeps it; a package loaded later reads it again.
    """
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SWITCH)
        if before is not None:
            os.environ[_SWITCH] = before
