"""The report of a load test as one HTML file, without script or network; for light and dark screens, phones and paper. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.loadtest.report.axes import Chart
from penstock.loadtest.report.charts import ChartLine, bar_chart, line_chart, stack
from penstock.loadtest.report.parts import Figure, ReportPage, TextTable, machine_line, render_page
from penstock.loadtest.report.wording import generator_line, headline, load_line, verdict
from penstock.loadtest.result import LoadTestResult, Second, Spread
from penstock.words import milliseconds, number, per_second, percent, size

_COLORS = ("c0", "c1", "c2", "c3", "c6", "c5", "c4")
# More points do not make a chart clearer, so the seconds of longer runs are grouped.
_MOST_POINTS = 300
_RANKS = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
_LABELS = {
    "closed": "calls under way",
    "rate": "calls per second",
    "duration_s": "measured, s",
    "warm_up_s": "warm-up before, s",
    "deadline_s": "deadline, s",
}


def render(result: LoadTestResult) -> str:
    """The whole page."""
    page = ReportPage(
        title=f"penstock bench: {result.subject.model}",
        heading=headline(result),
        subtitle=load_line(result),
        machine=machine_line(result.machine),
        tiles=_tiles(result),
        figures=list(_figures(result)),
        tables=list(_tables(result)),
        warnings=verdict(result),
        notes=result.notes,
    )
    return render_page(page, "bench.html")


def _tiles(result: LoadTestResult) -> dict[str, str]:
    outcome, latency = result.outcome, result.outcome.latency
    return {
        "answered": per_second(outcome.throughput_rps),
        "offered": per_second(outcome.offered_rps),
        "within the deadline": per_second(outcome.goodput_rps) if result.load.get("deadline_s") else "",
        "p50": milliseconds(latency.p50_ms if latency else None),
        "p99": milliseconds(latency.p99_ms if latency else None),
        "errors": percent(outcome.error_rate),
        "slots busy": percent(result.inside.busy_share) if result.inside and result.inside.busy_share is not None else "",
    }


def _figures(result: LoadTestResult) -> Iterable[Figure]:
    yield Figure(
        "Latency over time", "of the calls meant to leave in each second, counted from that moment", _over_time(result)
    )
    yield Figure("Distribution of latency", "share of the good answers that took no longer", _distribution(result))
    if len(result.steps) > 1:
        yield Figure("Throughput against offered load", "", _against_load(result))
        yield Figure("Latency against offered load", "", _latency_against_load(result))
    yield Figure(
        "Calls per second", "offered when they were meant to leave, answered when the answer came", _per_second(result)
    )
    inside = result.inside
    if inside and inside.stages_ms:
        text = "the mean call; rest is network, gateway, store, claim and settling"
        yield Figure("Where the time goes", text, stack(list(inside.stages_ms.items()), words=milliseconds))
    if inside and inside.batch_sizes:
        sizes = [(str(size_), count) for size_, count in inside.batch_sizes.items()]
        yield Figure("Batch sizes", inside.source, bar_chart(sizes, x="jobs in the batch", y="batches"))
        reasons = list(inside.reasons.items())
        yield Figure("Why batches left", "", bar_chart(reasons, x="reason", y="batches"))
    yield Figure("CPU by process", "cores in use", _cpu(result))


def _over_time(result: LoadTestResult) -> Chart | None:
    shown = _thinned(result.series)
    lines = [
        ChartLine("max", "c4", [(second.at_s, second.max_ms) for second in shown]),
        ChartLine("p99", "c1", [(second.at_s, second.p99_ms) for second in shown]),
        ChartLine("p50", "c0", [(second.at_s, second.p50_ms) for second in shown]),
    ]
    return line_chart(lines, x="seconds", y="ms")


def _distribution(result: LoadTestResult) -> Chart | None:
    lines = [ChartLine("latency", "c0", [(ms, 100.0 * part) for ms, part in result.cdf])]
    deadline_s = result.load.get("deadline_s")
    if deadline_s and result.cdf and deadline_s * 1e3 <= 3 * result.cdf[-1][0]:
        lines.append(ChartLine("deadline", "c3", [(deadline_s * 1e3, 0.0), (deadline_s * 1e3, 100.0)], dashed=True))
    return line_chart(lines, x="ms, logarithmic", y="% of answers", log_x=True, top=100.0) if result.cdf else None


def _against_load(result: LoadTestResult) -> Chart | None:
    steps = sorted(result.steps, key=lambda step: step.offered_rps)
    lines = [ChartLine("answered", "c0", [(step.offered_rps, step.throughput_rps) for step in steps])]
    if result.load.get("deadline_s"):
        lines.append(ChartLine("within the deadline", "c2", [(step.offered_rps, step.goodput_rps) for step in steps]))
    lines.append(ChartLine("as offered", "c1", [(0.0, 0.0), (steps[-1].offered_rps, steps[-1].offered_rps)], dashed=True))
    return line_chart(lines, x="offered per second", y="per second", left=0.0)


def _latency_against_load(result: LoadTestResult) -> Chart | None:
    steps = sorted(result.steps, key=lambda step: step.offered_rps)
    lines = [
        ChartLine("p99", "c1", [(step.offered_rps, step.p99_ms) for step in steps]),
        ChartLine("p50", "c0", [(step.offered_rps, step.p50_ms) for step in steps]),
    ]
    return line_chart(lines, x="offered per second", y="ms", left=0.0)


def _per_second(result: LoadTestResult) -> Chart | None:
    # The last second may be incomplete and would look like a drop.
    shown = _thinned(result.series[: max(1, int(result.outcome.seconds))])
    lines = [ChartLine("answered", "c0", [(second.at_s, float(second.answered)) for second in shown])]
    if any(second.errors for second in shown):
        lines.append(ChartLine("errors", "c3", [(second.at_s, float(second.errors)) for second in shown]))
    lines.append(ChartLine("offered", "c1", [(second.at_s, float(second.offered)) for second in shown], dashed=True))
    return line_chart(lines, x="seconds", y="per second")


def _cpu(result: LoadTestResult) -> Chart | None:
    named = zip(result.cpu_series.items(), _COLORS, strict=False)
    lines = [ChartLine(role, color, [(float(at), cores) for at, cores in enumerate(used)]) for (role, used), color in named]
    return line_chart(lines, x="seconds", y="cores") if any(line.points for line in lines) else None


def _thinned(series: Sequence[Second]) -> list[Second]:
    """Long runs in groups of seconds: rates are means; percentiles are the worst of the group, so that no spike is lost."""
    step = -(-len(series) // _MOST_POINTS) or 1
    if step == 1:
        return list(series)
    return [_grouped(series[begin : begin + step]) for begin in range(0, len(series), step)]


def _grouped(group: Sequence[Second]) -> Second:
    def worst(values: Iterable[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    return Second(
        group[0].at_s,
        round(sum(second.offered for second in group) / len(group)),
        round(sum(second.answered for second in group) / len(group)),
        round(sum(second.errors for second in group) / len(group)),
        worst(second.p50_ms for second in group),
        worst(second.p99_ms for second in group),
        worst(second.max_ms for second in group),
    )


def _tables(result: LoadTestResult) -> Iterable[TextTable]:
    yield _percentiles(result)
    errors = [(status, f"{count:,}", result.outcome.said.get(status, "")) for status, count in result.outcome.errors.items()]
    yield TextTable("Errors", ("status", "calls", "first answer"), errors, look="words")
    if len(result.steps) > 1:
        yield TextTable("Steps", ("offered/s", "answered", "in time", "p50, ms", "p99, ms", "errors"), _step_rows(result))
    uses = [
        (
            use.role,
            str(use.pid),
            f"{use.cpu_mean:.2f}",
            f"{use.cpu_max:.2f}",
            size(use.memory_mean_bytes),
            size(use.memory_max_bytes),
        )
        for use in result.processes
    ]
    yield TextTable("Processes", ("process", "pid", "cores", "most", "memory", "most"), uses)
    devices = [
        (use.name, percent(use.busy_mean), percent(use.busy_max), size(use.memory_mean_bytes), size(use.memory_bytes))
        for use in result.devices
    ]
    yield TextTable("Devices", ("device", "busy", "most", "memory", "of"), devices)
    yield TextTable("How it was measured", ("", ""), list(_settings(result).items()), look="words")


def _step_rows(result: LoadTestResult) -> list[tuple[str, ...]]:
    return [
        (
            number(step.offered_rps),
            number(step.throughput_rps),
            number(step.goodput_rps),
            number(step.p50_ms),
            number(step.p99_ms),
            f"{step.errors:,}",
        )
        for step in result.steps
    ]


def _percentiles(result: LoadTestResult) -> TextTable:
    """One row per percentile, so that the table fits a phone's screen."""
    inside = result.inside
    spreads = {
        "latency": result.outcome.latency,
        "queue wait": inside and inside.queue,
        "model's stages": inside and inside.run,
    }
    known = {name: _cells(spread) for name, spread in spreads.items() if spread}
    rows = [(name, *cells) for name, *cells in zip(_RANKS, *known.values(), strict=True)] if known else []
    return TextTable("Percentiles, ms", ("", *known), rows)


def _cells(spread: Spread) -> list[str]:
    values = (spread.mean_ms, spread.p50_ms, spread.p90_ms, spread.p95_ms, spread.p99_ms, spread.p999_ms, spread.max_ms)
    return [number(value) for value in values]


def _settings(result: LoadTestResult) -> dict[str, str]:
    subject = result.subject
    settings = {
        "version": subject.version,
        "ready slots": subject.slots,
        "largest batch": subject.max_batch_size,
        "longest wait for a batch": None if subject.max_wait_s is None else milliseconds(subject.max_wait_s * 1e3),
        "bodies": f"{subject.bodies}, {size(subject.body_bytes)} each on average" if subject.bodies else "none",
        **{_LABELS.get(name, name): _worded(value) for name, value in result.load.items()},
        "generator": generator_line(result),
        "gateway counted, warm-up included": _counted(result),
    }
    return {name: str(value) for name, value in settings.items() if value not in (None, "")}


def _worded(value: object) -> object:
    return number(value) if isinstance(value, float) else value


def _counted(result: LoadTestResult) -> str:
    return ", ".join(f"{name} {number(count)}" for name, count in result.inside.counted.items()) if result.inside else ""
