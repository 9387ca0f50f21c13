"""The shapes that an engine is built for: the smallest, the best and the largest per profile and input. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.errors import HandlerLoadError

Shape = tuple[int, ...]
Free = tuple[int | None, ...]


class Span(NamedTuple):
    """Shapes with the batch axis first."""

    least: Shape
    best: Shape
    most: Shape


Profile = dict[str, Span]


def batch_spans(buckets: Sequence[int], max_batch_size: int) -> list[tuple[int, int, int]]:
    """Smallest, best and largest batch per profile. Each bucket has a profile, because batches are cut and padded to exactly
    these sizes. Without buckets there is one profile, which is best at full batches."""
    if not buckets:
        return [(1, max_batch_size, max_batch_size)]
    return [(bucket, bucket, bucket) for bucket in sorted(set(buckets))]


def profiles(inputs: Mapping[str, Free], spans: Sequence[tuple[int, int, int]], shapes: Mapping[str, Any]) -> list[Profile]:
    """One profile per span. For each input with a free dimension besides the batch, `shapes` has three shapes without the batch
    axis: the smallest, best and largest. Raises `HandlerLoadError` if they are missing or do not fit."""
    unknown = set(shapes) - set(inputs)
    if unknown:
        raise HandlerLoadError(
            f"session.shapes names {', '.join(sorted(unknown))}, but the model's inputs are {', '.join(inputs)}"
        )
    rest = {name: _rest(name, shape[1:], shapes.get(name)) for name, shape in inputs.items()}
    return [{name: _span(shape[0], rest[name], batches) for name, shape in inputs.items() if shape} for batches in spans]


def outline(profile: Profile, bound: int) -> str:
    """One bound of a profile (0 smallest, 1 best, 2 largest) as ONNX Runtime's TensorRT provider reads it: `x:1x3x16x16,y:1x2`.
    One bound of a profile (0 smallest, 1 best, 2 largest) as ONNX Runtime's TensorRT provider reads it: `x:1x3x16x16,y:1x2`.
    """
    return ",".join(f"{name}:{'x'.join(map(str, span[bound]))}" for name, span in profile.items())


def _span(batch: int | None, rest: Sequence[Shape], batches: tuple[int, int, int]) -> Span:
    sizes = (batch,) * 3 if batch is not None else batches
    return Span(*((size, *shape) for size, shape in zip(sizes, rest, strict=True)))


def _rest(name: str, shape: Free, given: Any) -> list[Shape]:
    if given is None:
        fixed = tuple(size for size in shape if size is not None)
        if len(fixed) != len(shape):
            raise HandlerLoadError(
                f"input {name} has free dimensions besides the batch, {_in_words(shape)}, and an engine is built for a range: "
                f"set session.shapes.{name} = [least, best, most], three shapes without the batch axis"
            )
        return [fixed] * 3
    rows = [tuple(row) for row in given if isinstance(row, list | tuple)] if isinstance(given, list | tuple) else []
    if len(rows) != len(Span._fields) or not all(_fits(row, shape) for row in rows):
        raise HandlerLoadError(
            f"session.shapes.{name} must be three shapes (least, best, most) that fit {_in_words(shape)}, not {given!r:.200}"
        )
    return rows


def _fits(row: tuple[Any, ...], shape: Free) -> bool:
    return len(row) == len(shape) and all(
        isinstance(got, int) and got > 0 and want in (None, got) for got, want in zip(row, shape, strict=True)
    )


def _in_words(shape: Free) -> str:
    return str(["any" if size is None else size for size in shape]).replace("'", "")
