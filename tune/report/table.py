"""The result of a search for a terminal."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.tune.report.findings import learned_calls
from penstock.tune.result import Configuration, ConfigurationVerdict, Figures, RateCapacity, TuneResult
from penstock.words import milliseconds, number, per_second, percent, size

_SHOWN = 12


def print_result(result: TuneResult, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False)

    say(f"{result.model} (version {result.version}), {result.goal.text}", "bold")
    console.print(_table(result))
    say(_counts(result))
    winner = result.winner
    if winner is None:
        say("no configuration kept the goal under real load", "bold red")
    else:
        say(f"winner: {winner.choice.label}", "bold green")
        say(f"  {winner.why}")
        say(f"  {_rerun(winner)}")
        if calls := learned_calls(result):
            say(f"  {calls}")
    if result.capacity:
        say(capacity_line(result.capacity), "bold")
    for note in result.notes:
        say(f"note: {note}", "yellow")


def _table(result: TuneResult) -> Table:
    table = Table("verdict", "configuration", "predicted", "tail", "confirmed", "tail", "memory", "why", title_justify="left")
    shown = [one for one in result.configurations if one.verdict is not ConfigurationVerdict.PRUNED][:_SHOWN]
    pruned = [one for one in result.configurations if one.verdict is ConfigurationVerdict.PRUNED]
    for one in [*shown, *pruned[: max(3, _SHOWN - len(shown))]]:
        cells = (*_cells(one.predicted), *_cells(one.confirmed), size(one.memory_bytes or None))
        table.add_row(one.verdict.value, *map(escape, (one.choice.label, *cells, one.why)))
    return table


def _cells(figures: Figures | None) -> tuple[str, str]:
    return (per_second(figures.offered_rps), milliseconds(figures.tail_ms)) if figures else ("-", "-")


def _counts(result: TuneResult) -> str:
    counts = Counter(one.verdict.value for one in result.configurations)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    spent = result.spent
    return (
        f"{spent.configurations} configurations: {verdicts}; real load on {spent.confirmed} ({percent(spent.visited_share)}); "
        f"{number(spent.total_s)} s of {number(spent.budget_s)} s"
    )


def _rerun(winner: Configuration) -> str:
    if winner.rerun is None or winner.predicted is None:
        return "it was not run again"
    predicted, again = winner.predicted, winner.rerun
    return (
        f"run again: {per_second(again.throughput_rps)} (predicted {per_second(predicted.throughput_rps)}), "
        f"p50 {milliseconds(again.p50_ms)} ({milliseconds(predicted.p50_ms)}), "
        f"p99 {milliseconds(again.p99_ms)} ({milliseconds(predicted.p99_ms)})"
    )


def capacity_line(capacity: RateCapacity) -> str:
    count = capacity.slots
    devices = f" on {capacity.devices} devices" if capacity.devices else ""
    between = f", between {capacity.slots_low} and {capacity.slots_high}" if capacity.slots_low != capacity.slots_high else ""
    many = "1 slot" if count == 1 else f"{count} slots"
    error = f"error of the rate {percent(capacity.error)}: {capacity.basis}"
    return f"{per_second(capacity.rate)} needs {many}{devices}{between} ({error})"
