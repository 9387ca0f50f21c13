"""The difference between the answers of two engines to the same inputs. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.tune.result import Drift

_JSON = "json"


@dataclass(frozen=True, slots=True)
class ModelOutput:
    content_type: str
    data: bytes


def drift(answers: Sequence[ModelOutput], references: Sequence[ModelOutput], *, reference: str) -> Drift:
    """Floating-point numbers anywhere in an answer are compared by their difference; other values must be equal.

    The relative drift of an answer is its largest difference divided by the largest number in the reference's answer, so that
    numbers near zero do not count more than others.
    """
    absolute = relative = 0.0
    differing = compared = 0
    for answer, its in zip(answers, references, strict=True):
        pairs = list(_pairs(_value(answer), _value(its)))
        numbers = [(mine, theirs) for mine, theirs in pairs if _is_number(mine) and _is_number(theirs)]
        others = [(mine, theirs) for mine, theirs in pairs if not (_is_number(mine) and _is_number(theirs))]
        differences = [_difference(mine, theirs) for mine, theirs in numbers]
        most = max(differences, default=0.0)
        scale = max((abs(theirs) for _, theirs in numbers if math.isfinite(theirs)), default=0.0)
        absolute = max(absolute, most)
        relative = max(relative, most / scale if scale else most)
        differing += sum(mine != theirs for mine, theirs in others)
        compared += len(pairs)
    return Drift(reference, absolute, relative, differing, compared)


def _value(answer: ModelOutput) -> Any:
    if _JSON not in answer.content_type:
        return answer.data
    try:
        return json.loads(answer.data)
    except ValueError:
        return answer.data


def _pairs(mine: Any, theirs: Any) -> Iterator[tuple[Any, Any]]:
    """The leaves of both values side by side; where the shapes differ, the differing parts."""
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        for key in theirs:
            yield from _pairs(mine[key], theirs[key])
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for one, other in zip(mine, theirs, strict=True):
            yield from _pairs(one, other)
    else:
        yield mine, theirs


def _is_number(value: Any) -> bool:
    """Whole numbers are labels and counts, which must be equal."""
    return isinstance(value, float)


def _difference(mine: float, theirs: float) -> float:
    if mine == theirs or (math.isnan(mine) and math.isnan(theirs)):
        return 0.0
    return abs(mine - theirs) if math.isfinite(mine) and math.isfinite(theirs) else 1e308
