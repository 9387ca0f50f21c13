"""The findings of a search in words and rows, the same on the terminal, in the documentation and in the HTML report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.model_spec import LearnedCalls
from penstock.tune.result import Choice, Configuration, ConfigurationVerdict, Figures, Goal, TuneResult
from penstock.words import UNKNOWN, duration, milliseconds, number, per_second

CASE_COLUMNS = (
    "model",
    "device",
    "runtime",
    "precision",
    "batch size",
    "slots",
    "threads",
    "offered/s",
    "throughput/s",
    "p50, ms",
    "p99, ms",
    "in SLO",
    "figures",
)
_RUNTIMES = {"onnx": "ONNX Runtime", "torch": "torch", "tensorrt": "TensorRT", "auto": "the file's own runtime"}
_CALL_SIZES = 6
_ORDER = {
    ConfigurationVerdict.WINNER: 0,
    ConfigurationVerdict.CONFIRMED: 1,
    ConfigurationVerdict.LOST: 2,
    ConfigurationVerdict.PRUNED: 3,
}


def figures_of(configuration: Configuration) -> Figures | None:
    """The figures under real load; without these the simulated ones."""
    return configuration.confirmed or configuration.predicted


def keeps(figures: Figures, goal: Goal) -> bool:
    """Whether the percentile is within the limit, and the throughput at least the goal's."""
    enough = goal.min_rate is None or figures.throughput_rps >= goal.min_rate
    return figures.tail_ms <= goal.limit_s * 1e3 and enough


def goal_in_words(goal: Goal) -> str:
    more = f", at least {per_second(goal.min_rate)}" if goal.min_rate else ""
    return f"p{goal.percentile:g} within {milliseconds(goal.limit_s * 1e3)}{more}"


def answer(result: TuneResult) -> str:
    """One or two sentences: what to serve and what it gives, or that no configuration keeps the goal."""
    winner = result.winner
    figures = figures_of(winner) if winner else None
    if winner is None or figures is None:
        return f"No configuration was shown to keep {goal_in_words(result.goal)} under real load.{_nearest(result)}"
    how = "measured under load" if winner.confirmed else "simulated, not measured under load"
    tail = f"p{result.goal.percentile:g} of {milliseconds(figures.tail_ms)}"
    held = f"within {milliseconds(result.goal.limit_s * 1e3)}" if keeps(figures, result.goal) else "over the limit"
    gives = f"{per_second(figures.throughput_rps)} of {per_second(figures.offered_rps)} offered"
    return f"{served(winner.choice)}: {gives} at a {tail} ({held}; {how}).{_rival(result, figures)}"


def served(choice: Choice) -> str:
    """`Batches of up to 4 in 2 slots on cpu, ONNX Runtime in fp32 on 1 core each, waiting at most 10 ms for company`."""
    engine = choice.engine
    size = f"Batches of up to {choice.batch_size}" if choice.batch_size > 1 else "One request at a time"
    slots = "one slot" if choice.slots == 1 else f"{choice.slots} slots"
    if engine.device != "cpu":
        slots += " per device" + (", shared" if choice.placement != "dedicated" else "")
    runs = f"{_RUNTIMES.get(engine.runtime, engine.runtime)} in {engine.precision}"
    runs += "" if engine.compile == "off" else f", compiled ({engine.compile})"
    runs += "" if engine.threads is None else f", {engine.threads} {'thread' if engine.threads == 1 else 'threads'} each"
    return f"{size} in {slots} on {engine.device}, {runs}{_waiting(choice)}"


def learned_calls(result: TuneResult) -> str:
    """How the winner's engine cuts batches into calls; empty if its calls are quick, or few ran."""
    winner = result.winner
    known = [one.calls for one in result.measured if winner and one.engine == winner.choice.engine and one.calls]
    return calls_in_words(known[0]) if known else ""


def calls_in_words(calls: LearnedCalls) -> str:
    """`calls of 4 items on average, chosen by padded cost: 64 takes 2 ms, 256 takes 7 ms`; of many sizes some."""
    step = max(1, -(-len(calls.run_s) // _CALL_SIZES))
    some = [*calls.run_s[:-1:step], *calls.run_s[-1:]]
    times = ", ".join(f"{number(size)} takes {duration(seconds)}" for size, seconds in some)
    return f"calls of {number(calls.items_per_call)} items on average, chosen by {calls.measure}: {times}"


def _waiting(choice: Choice) -> str:
    if choice.batch_size == 1 or choice.slots == 1:
        return ""
    wait_ms = choice.max_wait_s * 1e3
    return f", waiting at most {milliseconds(wait_ms)} for company" if wait_ms else ", never waiting for company"


def ranked(result: TuneResult) -> list[Configuration]:
    """By verdict: winner, confirmed, lost, ruled out; the fastest first within each."""

    def rank(one: Configuration) -> tuple[int, float]:
        figures = figures_of(one)
        return _ORDER[one.verdict], -figures.throughput_rps if figures else 0.0

    return sorted(result.configurations, key=rank)


def case_rows(result: TuneResult, *, most: int) -> list[tuple[str, ...]]:
    """The best configurations with figures as rows of `CASE_COLUMNS`, the winner first.

    Among rows that differ only in their wait only the best is shown, because there is no column for the wait.
    """
    shown = {_identity(one): one for one in reversed(ranked(result)) if figures_of(one) is not None}
    return [_row(result, one) for one in list(reversed(shown.values()))[:most]]


def best_by_size(result: TuneResult) -> list[Configuration]:
    """The best configuration that keeps the goal, for each batch size and number of slots, in the order of `ranked`."""
    best: dict[tuple[int, int], Configuration] = {}
    for one in ranked(result):
        figures = figures_of(one)
        if figures and (one.verdict is ConfigurationVerdict.WINNER or keeps(figures, result.goal)):
            best.setdefault((one.choice.batch_size, one.choice.slots), one)
    return list(best.values())


def predicted_and_confirmed(result: TuneResult) -> list[tuple[str, ...]]:
    """Rows: configuration, offered rate, then predicted, measured and difference of the throughput and of the percentile."""
    rows = []
    for one in ranked(result):
        if one.predicted and one.confirmed:
            rows.append(_compared(one.choice.label, one.predicted, one.confirmed))
        if one.predicted and one.rerun:
            rows.append(_compared(f"{one.choice.label}, run again", one.predicted, one.rerun))
    return rows


def why_lost(result: TuneResult, *, most: int) -> list[tuple[str, str]]:
    """Rows of configurations and the reason why they lost; configurations with the same reason share a row."""
    losers = [one for one in ranked(result) if one.verdict is not ConfigurationVerdict.WINNER]
    together: dict[str, list[str]] = {}
    for one in losers:
        together.setdefault(one.why, []).append(one.choice.label)
    rows = [(_named(labels), why) for why, labels in together.items()]
    left = sum(len(labels) for labels in list(together.values())[most:])
    return rows[:most] + ([(f"{left} more", "the JSON result lists each of them")] if left else [])


def difference(predicted: float, measured: float) -> str:
    """The difference of the measurement from the prediction, in per cent."""
    return f"{(measured / predicted - 1.0) * 100:+.1f} %" if predicted > 0.0 else UNKNOWN


def space_in_words(space: Mapping[str, Iterable[Any]]) -> dict[str, str]:
    return {name: ", ".join("auto" if value is None else str(value) for value in values) for name, values in space.items()}


def _identity(one: Configuration) -> tuple[object, ...]:
    choice = one.choice
    return choice.engine, choice.batch_size, choice.slots, choice.placement


def _row(result: TuneResult, one: Configuration) -> tuple[str, ...]:
    figures, engine = figures_of(one), one.choice.engine
    assert figures is not None
    precision = engine.precision if engine.compile == "off" else f"{engine.precision}, compiled"
    return (
        result.model,
        engine.device,
        engine.runtime,
        precision,
        str(one.choice.batch_size),
        str(one.choice.slots),
        "auto" if engine.threads is None else str(engine.threads),
        number(figures.offered_rps),
        number(figures.throughput_rps),
        number(figures.p50_ms),
        number(figures.p99_ms),
        "yes" if keeps(figures, result.goal) else "no",
        "winner, measured"
        if one.verdict is ConfigurationVerdict.WINNER and one.confirmed
        else "measured"
        if one.confirmed
        else "simulated",
    )


def _compared(label: str, predicted: Figures, measured: Figures) -> tuple[str, ...]:
    return (
        label,
        number(measured.offered_rps),
        number(predicted.throughput_rps),
        number(measured.throughput_rps),
        difference(predicted.throughput_rps, measured.throughput_rps),
        number(predicted.tail_ms),
        number(measured.tail_ms),
        difference(predicted.tail_ms, measured.tail_ms),
    )


def _nearest(result: TuneResult) -> str:
    """The best configuration that keeps the goal in simulation; if there is none, the one with the shortest tail."""
    known = [(figures, one) for one in result.configurations if (figures := figures_of(one))]
    if not known:
        return " None of them got as far as a simulation: the reasons are below."
    hopeful = [pair for pair in known if keeps(pair[0], result.goal)]
    figures, one = (
        max(hopeful, key=lambda pair: pair[0].throughput_rps) if hopeful else min(known, key=lambda pair: pair[0].tail_ms)
    )
    gives = f"{per_second(figures.throughput_rps)} at a p{result.goal.percentile:g} of {milliseconds(figures.tail_ms)}"
    if not hopeful:
        return f" Nearest came {one.choice.label}: {gives}."
    return f" Not confirmed, the best is {one.choice.label}: {gives}. More time (--budget) confirms more."


def _rival(result: TuneResult, best: Figures) -> str:
    """The next best configuration that kept the goal under real load."""
    rest = [one for one in ranked(result) if one.verdict is ConfigurationVerdict.CONFIRMED]
    known = [(figures, one) for one in rest if (figures := one.confirmed) and keeps(figures, result.goal)]
    if not known:
        return ""
    figures, one = max(known, key=lambda pair: pair[0].throughput_rps)
    less = 1.0 - figures.throughput_rps / best.throughput_rps
    much = f"{less * 100:.0f} % less" if less >= 0.005 else f"{-less * 100:.0f} % more" if less <= -0.005 else "the same"
    return f" Next measured: {one.choice.label} with {per_second(figures.throughput_rps)}, {much}."


def _named(labels: list[str]) -> str:
    """The label of one configuration; for several, their number and the first three."""
    if len(labels) == 1:
        return labels[0]
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return f"{len(labels)}: {'; '.join(labels[:3])}{more}"
