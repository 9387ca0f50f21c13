"""The verdict on every configuration of the space, with the reason in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from penstock.tune.candidates import Knowledge, Ranking, preference
from penstock.tune.result import Choice, Configuration, ConfigurationVerdict, Figures, Goal
from penstock.tune.trials import Confirmation


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The state of a search. `out` and `behind` hold reasons: why measurements ruled a configuration out, and why corrected
    predictions put it behind the best. `tried` were under real load; `rerun` is the winner's second run."""

    out: Mapping[Choice, str]
    ranking: Ranking
    tried: Mapping[Choice, Confirmation]
    behind: Mapping[Choice, str]
    rerun: Figures | None = None
    # The configuration whose second run kept the goal. It stays the winner, even if the second run lowered its rate.
    champion: Choice | None = None

    def winner(self, goal: Goal) -> tuple[Choice, Figures] | None:
        """The best configuration that kept the goal under real load."""
        if self.champion is not None:
            return self.champion, cast("Figures", self.tried[self.champion].figures)
        kept = [(choice, tried.figures) for choice, tried in self.tried.items() if tried.figures is not None]
        return min(kept, key=lambda pair: preference(pair[0], pair[1], goal), default=None)


def configurations(
    points: Sequence[Choice], outcome: SearchOutcome, knowledge: Knowledge, goal: Goal
) -> tuple[Configuration, ...]:
    """One per point of the space, by verdict and then by the rate that each reached."""
    winner = outcome.winner(goal)
    judged = [_configuration(point, outcome, knowledge, goal, winner) for point in points]
    order = list(ConfigurationVerdict).index
    return tuple(sorted(judged, key=lambda one: (order(one.verdict), -reached(one))))


def reached(one: Configuration) -> float:
    """Requests per second under real load, otherwise simulated; 0: neither is known."""
    figures = one.confirmed or one.predicted
    return figures.offered_rps if figures else 0.0


def _configuration(
    choice: Choice, outcome: SearchOutcome, knowledge: Knowledge, goal: Goal, winner: tuple[Choice, Figures] | None
) -> Configuration:
    measured = knowledge.engines.get((choice.engine, choice.slots)) or knowledge.engines.get((choice.engine, 1))
    tried = outcome.tried.get(choice)
    verdict, why = _verdict(choice, outcome, goal, winner)
    predicted = tried.predicted if tried and tried.predicted else outcome.ranking.predicted.get(choice)
    one = Configuration(
        choice,
        verdict,
        why,
        predicted=predicted,
        confirmed=tried.figures if tried else None,
        rerun=outcome.rerun if verdict is ConfigurationVerdict.WINNER else None,
        stages_ms=dict(tried.stages_ms) if tried else {},
        memory_bytes=measured.memory_bytes if measured else 0,
        device_memory_bytes=measured.device_memory_bytes if measured else 0,
        drift=measured.drift if measured else None,
    )
    return replace(one, cost_per_million=cost_per_million(reached(one), goal.price_per_hour))


def cost_per_million(rate: float, price_per_hour: float | None) -> float | None:
    """The cost of a million requests at a constant `rate` per second, on a machine that costs `price_per_hour`."""
    return price_per_hour / (rate * 3_600.0) * 1e6 if price_per_hour is not None and rate > 0.0 else None


def _verdict(
    choice: Choice, outcome: SearchOutcome, goal: Goal, winner: tuple[Choice, Figures] | None
) -> tuple[ConfigurationVerdict, str]:
    if choice in outcome.out:
        return ConfigurationVerdict.PRUNED, outcome.out[choice]
    tried = outcome.tried.get(choice)
    if tried is not None:
        return _of_tried(choice, tried, goal, winner)
    known = outcome.behind.get(choice) or outcome.ranking.lost.get(choice)
    if known:
        return ConfigurationVerdict.LOST, known
    return ConfigurationVerdict.LOST, _behind(outcome.ranking.predicted[choice], goal, winner)


def _of_tried(
    choice: Choice, tried: Confirmation, goal: Goal, winner: tuple[Choice, Figures] | None
) -> tuple[ConfigurationVerdict, str]:
    if tried.figures is None or winner is None:
        return ConfigurationVerdict.LOST, tried.why
    if choice == winner[0]:
        return ConfigurationVerdict.WINNER, _won(winner[1], goal)
    return ConfigurationVerdict.CONFIRMED, f"confirmed at {_rate(tried.figures)}, the winner at {_rate(winner[1])}"


def _won(figures: Figures, goal: Goal) -> str:
    best = "the cheapest that carries the rate" if goal.min_rate is not None else "the highest of all"
    return f"{_rate(figures)} with p{goal.percentile:g} at {figures.tail_ms:.3g} ms under real load, {best}"


def _behind(predicted: Figures, goal: Goal, winner: tuple[Choice, Figures] | None) -> str:
    if winner is None:
        return f"simulated at {_rate(predicted)}; not confirmed"
    if goal.min_rate is not None:
        return "it carries the rate too, but needs no fewer cores"
    if predicted.offered_rps > winner[1].offered_rps:
        return f"simulated at {_rate(predicted)} before real load corrected the predictions; there was no time to confirm it"
    return f"simulated at {_rate(predicted)}, the winner has {_rate(winner[1])}"


def _rate(figures: Figures) -> str:
    return f"{figures.offered_rps:.4g}/s"
