"""The charts of a search's report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.loadtest.report.axes import Chart
from penstock.loadtest.report.charts import ChartLine, Dot, bar_chart, heat_map, line_chart, scatter, stack
from penstock.loadtest.report.parts import Figure
from penstock.tune.report.findings import best_by_size, figures_of, ranked
from penstock.tune.result import BatchTime, Configuration, ConfigurationVerdict, Measured, TuneResult
from penstock.words import milliseconds, number, per_second

_COLORS = ("c0", "c1", "c2", "c3", "c6", "c5", "c4")
_MOST_DOTS = 1_500
_MOST_BARS = 8
# Colour and radius of a dot. Later verdicts are drawn over earlier ones.
_LOOKS = {
    ConfigurationVerdict.PRUNED: ("c4", 2.5),
    ConfigurationVerdict.LOST: ("c4", 2.5),
    ConfigurationVerdict.CONFIRMED: ("c0", 4.5),
    ConfigurationVerdict.WINNER: ("c1", 6.0),
}


def figures(result: TuneResult) -> Iterable[Figure]:
    """All charts; the page leaves out a figure without data."""
    tail, winner = f"p{result.goal.percentile:g}", result.winner
    text = f"each configuration at the highest rate at which it should keep the goal; Poisson arrivals; {tail} of the latency"
    yield Figure("Throughput against latency", text, _configurations(result))
    text = "full batches one after another, without arrivals or a queue: what a closed loop shows of each engine"
    yield Figure("Batches back to back", text, _back_to_back(result))
    text = "the most requests per second within the goal at this batch size and number of slots; framed: the winner"
    yield Figure("Batch size and slots", text, _map(result))
    if winner and winner.stages_ms:
        parts = [(name, max(0.0, value)) for name, value in winner.stages_ms.items()]
        text = "the mean request under load; rest is network, gateway, store, claim and settling"
        yield Figure("Where the winner's time goes", text, stack(parts, words=milliseconds))
    yield Figure("How long a batch takes", "all stages of one batch, one slot alone, by batch size", _batch_times(result))
    text = f"at {number(result.goal.price_per_hour)} an hour, within the goal" if result.goal.price_per_hour else ""
    yield Figure("Cost of a million requests", text, _costs(result))


def _configurations(result: TuneResult) -> Chart | None:
    shown = [one for one in reversed(ranked(result)) if figures_of(one)][-_MOST_DOTS:]
    dots = [_dot(one) for one in shown]
    names = [("simulated", "c4"), ("measured", "c0"), ("winner", "c1"), (result.goal.text, "c3"), ("not surpassed", "c5")]
    x, limit = f"p{result.goal.percentile:g}, ms", result.goal.limit_s * 1e3
    return scatter(dots, x=x, y="requests per second", names=names, limit=limit, path=front(dots))


def _dot(one: Configuration) -> Dot:
    measured = figures_of(one)
    assert measured is not None
    color, radius = _LOOKS[one.verdict]
    title = f"{one.choice.label}: {per_second(measured.throughput_rps)} at {milliseconds(measured.tail_ms)}"
    return Dot(measured.tail_ms, measured.throughput_rps, color, title, radius)


def front(dots: Sequence[Dot]) -> list[Dot]:
    """The Pareto front: the dots that no other dot beats in both latency and throughput."""
    best: list[Dot] = []
    for dot in sorted(dots, key=lambda each: (each.x, -each.y)):
        if not best or dot.y > best[-1].y:
            best.append(dot)
    return best


def _back_to_back(result: TuneResult) -> Chart | None:
    chosen = result.winner.choice if result.winner else None
    dots = []
    for measured in result.measured:
        for time in measured.times:
            mine = chosen and (chosen.engine, chosen.slots, chosen.batch_size) == (
                measured.engine,
                measured.slots,
                time.size,
            )
            dots.append(_full_batches(measured, time, "c1" if mine else "c0", 6.0 if mine else 3.5))
    dots.sort(key=lambda dot: dot.radius)
    names = [("batch size and engine", "c0"), ("the winner's", "c1"), (result.goal.text, "c3"), ("not surpassed", "c5")]
    limit = result.goal.limit_s * 1e3
    return scatter(dots, x="ms of a batch", y="items per second", names=names, limit=limit, path=front(dots))


def _full_batches(measured: Measured, time: BatchTime, color: str, radius: float) -> Dot:
    whole_s = time.preprocess_s + time.inference_s + time.postprocess_s
    # Stages of successive batches overlap, so the longest stage sets the pace.
    pace_s = max(time.preprocess_s, time.inference_s, time.postprocess_s, 1e-9)
    throughput = measured.slots * time.size / pace_s
    what = f"batch {time.size}, {measured.slots} x {measured.engine.label}"
    title = f"{what}: {per_second(throughput)} at {milliseconds(whole_s * 1e3)}"
    return Dot(whole_s * 1e3, throughput, color, title, radius)


def _map(result: TuneResult) -> Chart | None:
    sizes = sorted({one.choice.batch_size for one in result.configurations})
    slots = sorted({one.choice.slots for one in result.configurations})
    cells = {
        (str(one.choice.batch_size), str(one.choice.slots)): measured.throughput_rps
        for one in best_by_size(result)
        if (measured := figures_of(one))
    }
    chosen = result.winner.choice if result.winner else None
    best = (str(chosen.batch_size), str(chosen.slots)) if chosen else ("", "")
    return heat_map(cells, columns=[*map(str, sizes)], rows=[*map(str, slots)], x="batch size", y="slots", best=best)


def _batch_times(result: TuneResult) -> Chart | None:
    alone = [measured for measured in result.measured if measured.slots == 1 and measured.times]
    alone.sort(key=lambda measured: measured.times[-1].inference_s / measured.times[-1].size)
    chosen = result.winner.choice.engine if result.winner else None
    alone.sort(key=lambda measured: measured.engine != chosen)
    lines = []
    for measured, color in zip(alone, _COLORS, strict=False):
        points = [
            (float(time.size), 1e3 * (time.preprocess_s + time.inference_s + time.postprocess_s)) for time in measured.times
        ]
        lines.append(ChartLine(measured.engine.label, color, sorted(points)))
    return line_chart(lines, x="batch size", y="ms", left=0.0)


def _costs(result: TuneResult) -> Chart | None:
    shown = [one for one in best_by_size(result) if one.cost_per_million]
    bars = [(f"{one.choice.batch_size}x{one.choice.slots}", one.cost_per_million or 0.0) for one in shown[:_MOST_BARS]]
    return bar_chart(bars, x="batch size x slots", y="a million")
