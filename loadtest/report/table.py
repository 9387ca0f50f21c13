"""The report of a load test for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from penstock.loadtest.report.wording import generator_line, headline, load_line, verdict
from penstock.loadtest.result import Inside, LoadOutcome, LoadTestResult, Spread
from penstock.words import milliseconds, number, per_second, percent, size

_PERCENTILES = ("p50", "p90", "p95", "p99", "p99.9", "max", "mean")


def print_result(result: LoadTestResult, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False)

    say(headline(result), "bold")
    say(load_line(result))
    _outcome(result.outcome, console=console, deadline=bool(result.load.get("deadline_s")))
    console.print(_latencies(result))
    if len(result.steps) > 1:
        console.print(_steps(result))
    if result.inside:
        _inside(result.inside, console)
    if result.processes:
        console.print(_processes(result))
    if result.devices:
        console.print(_devices(result))
    say(f"generator: {generator_line(result)}")
    for text in result.notes:
        say(f"note: {text}", "yellow")
    for text in verdict(result):
        say(text, "bold red")


def _outcome(outcome: LoadOutcome, *, console: Console, deadline: bool) -> None:
    goodput = f", within the deadline {per_second(outcome.goodput_rps)}" if deadline else ""
    line = f"offered {per_second(outcome.offered_rps)}, answered {per_second(outcome.throughput_rps)}{goodput}"
    console.print(f"{line}, errors {percent(outcome.error_rate)}", markup=False, highlight=False)
    for status, count in outcome.errors.items():
        body = outcome.said.get(status, "")
        console.print(f"  {count:,} x {status}{': ' + body[:160] if body else ''}", markup=False, highlight=False, style="red")


def _latencies(result: LoadTestResult) -> Table:
    table = Table("ms", *_PERCENTILES)
    inside = result.inside
    rows = {"latency": result.outcome.latency, "queue": inside and inside.queue, "run": inside and inside.run}
    for name, spread in rows.items():
        if spread:
            table.add_row(name, *_cells(spread))
    return table


def _cells(spread: Spread) -> list[str]:
    values = (spread.p50_ms, spread.p90_ms, spread.p95_ms, spread.p99_ms, spread.p999_ms, spread.max_ms, spread.mean_ms)
    return [number(value) for value in values]


def _steps(result: LoadTestResult) -> Table:
    table = Table("offered/s", "answered/s", "in time/s", "p50", "p99", "errors")
    for step in result.steps:
        rates = (number(step.offered_rps), number(step.throughput_rps), number(step.goodput_rps))
        table.add_row(*rates, milliseconds(step.p50_ms), milliseconds(step.p99_ms), f"{step.errors:,}")
    return table


def _inside(inside: Inside, console: Console) -> None:
    sizes = ", ".join(f"{size_}: {number(count)}" for size_, count in inside.batch_sizes.items())
    reasons = ", ".join(f"{reason} {number(count)}" for reason, count in inside.reasons.items())
    stages = ", ".join(f"{stage} {milliseconds(mean)}" for stage, mean in inside.stages_ms.items())
    counted = ", ".join(f"{name} {number(count)}" for name, count in inside.counted.items())
    lines = {
        "mean split": stages,
        "batches by size": sizes,
        "released because": reasons,
        "slots busy": percent(inside.busy_share) if inside.busy_share is not None else "",
        "gateway counted, warm-up included": counted,
        "source": inside.source,
    }
    for name, text in lines.items():
        if text:
            console.print(f"{name}: {text}", markup=False, highlight=False)


def _processes(result: LoadTestResult) -> Table:
    table = Table("process", "pid", "CPU, cores", "most", "memory", "most")
    for use in result.processes:
        memory = (size(use.memory_mean_bytes), size(use.memory_max_bytes))
        table.add_row(use.role, str(use.pid), f"{use.cpu_mean:.2f}", f"{use.cpu_max:.2f}", *memory)
    return table


def _devices(result: LoadTestResult) -> Table:
    table = Table("device", "busy", "most", "memory", "of")
    for use in result.devices:
        table.add_row(
            use.name, percent(use.busy_mean), percent(use.busy_max), size(use.memory_mean_bytes), size(use.memory_bytes)
        )
    return table
