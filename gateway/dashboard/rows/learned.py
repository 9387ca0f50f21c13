"""What a model's policy learned, for its page: run time by batch size as a curve, and the reasons for the sizes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock import words
from penstock.model_spec import BatchPolicy

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 520.0, 200.0, 52.0, 16.0, 14.0, 28.0
_MOST_MARKS = 8
# A larger batch that saves less than this share of an item's time is not worth waiting for.
_WORTH = 0.02


@dataclass(frozen=True, slots=True)
class LearnedCurve:
    """An SVG drawing in a box of `width` x `height`: `dots` are x, y, batch size and seconds, `lines` y and label of the scale,
    `marks` x and batch size below the line.
    """

    points: str
    dots: tuple[tuple[float, float, int, float], ...]
    lines: tuple[tuple[float, str], ...]
    marks: tuple[tuple[float, str], ...]
    width: float = _WIDTH
    height: float = _HEIGHT


def curve_of(times: Sequence[tuple[int, float]]) -> LearnedCurve | None:
    """None for fewer than two batch sizes. `times` are seconds by batch size, ascending."""
    if len(times) < 2:
        return None
    largest, longest = times[-1][0], max(took for _, took in times) or 1e-9
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    dots = tuple(
        (round(_LEFT + across * size / largest, 1), round(_TOP + down * (1 - took / longest), 1), size, took)
        for size, took in times
    )
    step = max(1, -(-len(dots) // _MOST_MARKS))
    marked = {*dots[::step], dots[-1]}
    return LearnedCurve(
        " ".join(f"{x:g},{y:g}" for x, y, _, _ in dots),
        dots,
        tuple((round(_TOP + down * (1 - part), 1), words.duration(longest * part)) for part in (0.0, 0.5, 1.0)),
        tuple((x, str(size)) for x, _, size, _ in sorted(marked)),
    )


def why_sizes(times: Sequence[tuple[int, float]], policy: BatchPolicy) -> str:
    """The sizes of batches and the reasons, in sentences; empty before anything is learned."""
    if not times:
        return ""
    cheapest_s = min(run / size for size, run in times)
    # Among sizes with the same cost per item, the smallest waits least.
    best, took = next((size, run) for size, run in times if run / size <= (1 + _WORTH) * cheapest_s)
    alone = times[0][1] / times[0][0]
    gain = f", {alone * best / took:.1f} times as fast as one by one" if took and best > 1 else ""
    wait = words.duration(policy.max_wait_s)
    return (
        f"A batch takes what waits, up to {policy.max_batch_size}; it leaves at once while a slot has nothing else to do, and "
        f"otherwise when it is full or its first job has waited {wait}. An item costs least in batches of {best}: "
        f"{words.duration(took / best)}{gain}."
    )
