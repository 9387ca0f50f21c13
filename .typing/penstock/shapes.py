"""Whether an array has a shape that a model takes, and the sentence that says why not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

# Smallest and largest size of each dimension; None: no largest.
Bounds = Sequence[tuple[int, int | None]]


def shape_fits(shape: Sequence[int], bounds: Bounds) -> bool:
    if len(shape) != len(bounds):
        return False
    return all(low <= got and (high is None or got <= high) for (low, high), got in zip(bounds, shape, strict=True))


def misfit(name: str, shape: Sequence[int], bounds: Bounds) -> str:
    """`image has shape [3, 100, 100], the model takes [3, 224, 224]`."""
    return f"{name} has shape {list(shape)}, the model takes {wanted(bounds)}"


def ragged(name: str) -> str:
    return f"{name} is not a regular nested list of numbers: its rows differ in length"


def wanted(bounds: Bounds) -> str:
    """`[3, any, 1 to 64]`."""
    return f"[{', '.join(_words(low, high) for low, high in bounds)}]"


def _words(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more" if low else "any"
    return str(low) if low == high else f"{low} to {high}"
