"""The report of a search as one HTML file, without script or network; for light and dark screens, phones and paper."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from penstock.errors import BadRequest
from penstock.loadtest.report.parts import ReportPage, TextTable, machine_line, render_page
from penstock.tune.report import findings
from penstock.tune.report.figures import figures
from penstock.tune.result import Drift, Measured, RateCapacity, TuneResult
from penstock.words import UNKNOWN, milliseconds, number, per_second, percent, size

_MOST_ROWS = 12
_MOST_REASONS = 40
_MOST_ENGINES = 40
_METHOD = (
    "Every engine (device, runtime, precision, compile mode, threads) runs batches of each size in a process of its own. Its "
    "answers are compared with those of the first engine. Engines that cannot keep the goal, do not fit into memory or are "
    "slower at every size are ruled out. For the others, Poisson arrivals are simulated with the measured times and the "
    "workers' batching policy. The best configurations get real open-loop load on the whole stack; the winner is one of these."
)


def write_report(result: TuneResult, path: Path) -> None:
    """Raises `BadRequest` if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(result), "utf-8")
    except OSError as fault:
        raise BadRequest(f"{path} cannot be written: {fault.strerror}", hint="name a file in a folder of yours") from fault


def render(result: TuneResult) -> str:
    """The whole page."""
    name = result.model if result.version in ("", "1") else f"{result.model} {result.version}"
    searched = f"{result.spent.configurations or len(result.configurations):,} configurations"
    page = ReportPage(
        title=f"penstock tune: {result.model}",
        heading=f"{name}: {findings.goal_in_words(result.goal)}",
        subtitle=f"penstock tune, {searched} searched in {_minutes(result.spent.total_s)}",
        machine=machine_line(result.machine),
        tiles=_tiles(result),
        figures=list(figures(result)),
        tables=list(_tables(result)),
        answers=[findings.answer(result), *([_capacity(result.capacity)] if result.capacity else [])],
        notes=result.notes,
    )
    return render_page(page, "tune.html", package="penstock.tune.report")


def _tiles(result: TuneResult) -> dict[str, str]:
    winner = result.winner
    measured = findings.figures_of(winner) if winner else None
    if winner is None or measured is None:
        return {}
    cost = winner.cost_per_million
    memory = winner.device_memory_bytes or winner.memory_bytes
    return {
        "requests per second": per_second(measured.throughput_rps),
        "p50": milliseconds(measured.p50_ms),
        "p99": milliseconds(measured.p99_ms),
        f"of the p{result.goal.percentile:g} allowed": percent(measured.tail_ms / (result.goal.limit_s * 1e3)),
        "in a batch, on average": number(measured.mean_batch) if measured.mean_batch else "",
        "memory of a slot": size(memory) if memory else "",
        "cost of a million": "" if cost is None else number(cost),
        "under real load": f"{result.spent.confirmed} of {result.spent.configurations}" if result.spent.configurations else "",
    }


def _capacity(need: RateCapacity) -> str:
    where = f"{need.slots} slots on {need.devices} devices" if need.devices else f"{need.slots} slots"
    spread = f"{need.slots_low} to {need.slots_high}" if need.slots_low != need.slots_high else str(need.slots)
    return (
        f"{per_second(need.rate)} need {where} of {need.choice.label}; within the error of {percent(need.error)}: {spread}. "
        f"Basis: {need.basis}."
    )


def _best(result: TuneResult) -> TextTable:
    # The heading names the model. The last column comes first, because it is the title of a card.
    _, *columns, origin = findings.CASE_COLUMNS
    rows = [(row[-1], *row[1:-1]) for row in findings.case_rows(result, most=_MOST_ROWS)]
    return TextTable("The best configurations", (origin, *columns), rows, look="cards")


def _tables(result: TuneResult) -> Iterable[TextTable]:
    yield _best(result)
    tail = f"p{result.goal.percentile:g}"
    head = ("configuration", "offered/s", "simulated/s", "measured/s", "", f"{tail} simulated", f"{tail} measured", "")
    named = [name or "difference" for name in head]
    yield TextTable("Predicted against measured", named, findings.predicted_and_confirmed(result), look="cards")
    yield TextTable(
        "Why the others lost", ("configuration", "why"), findings.why_lost(result, most=_MOST_REASONS), look="reasons"
    )
    columns = ("engine", "slots", "a batch of 1", "the largest", "memory", "load", "drift", "items per call")
    rows = [engine_row(measured) for measured in result.measured[:_MOST_ENGINES]]
    yield TextTable("What was measured of each engine", columns, rows, look="cards")
    yield TextTable("What was searched", ("", ""), list(findings.space_in_words(result.space).items()), look="words")
    yield TextTable("How", ("", ""), _how(result), look="words")


def engine_row(measured: Measured) -> tuple[str, ...]:
    name, slots = measured.engine.label, str(measured.slots)
    if not measured.times:
        return (f"{name}: {measured.error or 'not measured'}", slots, *[UNKNOWN] * 6)
    ordered = sorted(measured.times, key=lambda time: time.size)
    alone, full = (
        f"{number((time.preprocess_s + time.inference_s + time.postprocess_s) * 1e3)} ms" for time in (ordered[0], ordered[-1])
    )
    memory = measured.device_memory_bytes or measured.memory_bytes
    largest = f"{full} for {ordered[-1].size}"
    calls = f"{number(measured.calls.items_per_call)}, by {measured.calls.measure}" if measured.calls else UNKNOWN
    return name, slots, alone, largest, size(memory or None), f"{number(measured.load_s)} s", _drift(measured.drift), calls


def _drift(drift: Drift | None) -> str:
    if drift is None:
        return UNKNOWN
    if drift.differing:
        return f"{drift.differing} of {drift.compared} differ"
    return f"{number(drift.relative * 100)} %" if drift.relative >= 1e-6 else "none"


def _how(result: TuneResult) -> list[tuple[str, str]]:
    costs, spent = result.overheads, result.spent
    steps = ", ".join(f"{name} {number(seconds)} s" for name, seconds in spent.steps_s.items())
    outside = ", ".join(
        f"{name} {milliseconds(seconds * 1e3)}"
        for name, seconds in (("claim", costs.claim_s), ("feed", costs.feed_s), ("request", costs.request_s))
        if seconds
    )
    named = {
        "method": _METHOD,
        "inputs": result.sample,
        "a request beside its batch": outside,
        "answers may drift by": percent(result.goal.tolerance),
        "time of the search": steps,
        "time given": _minutes(spent.budget_s) if spent.budget_s else "",
        "memory of the machine": size(_bytes(result)),
        "versions": _versions(result),
    }
    return [(name, text) for name, text in named.items() if text and text != UNKNOWN]


def _bytes(result: TuneResult) -> float | None:
    memory = result.machine.get("memory_bytes")
    return float(memory) if isinstance(memory, (int, float)) else None


def _versions(result: TuneResult) -> str:
    packages = result.machine.get("packages")
    named = {"python": result.machine.get("python"), **(packages if isinstance(packages, dict) else {})}
    return ", ".join(f"{name} {version}" for name, version in named.items() if version not in (None, "absent"))


def _minutes(seconds: float) -> str:
    return f"{number(seconds / 60.0)} min" if seconds >= 120.0 else f"{number(seconds)} s"
