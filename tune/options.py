"""From the options of the command line to the parts of a question: goal, durations, dimensions, the model's own settings."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadRequest
from penstock.model_spec import ModelSpec
from penstock.settings.models import version_class
from penstock.settings.tables import Settings
from penstock.tune.result import Goal
from penstock.tune.space import checked, read_pairs
from penstock.tune.sweep_file import read_sweep

_SLO = re.compile(r"p(?P<percentile>50|90|95|99|99\.9)\s*(?:=|<=?)\s*(?P<limit>[^=<]+)")
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|min|h)?")
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0}


@dataclass(frozen=True, slots=True)
class TunedModel:
    """The model to tune. `table`: its declared settings that differ from the defaults."""

    spec: ModelSpec
    table: dict[str, Any]


def goal_of(slo: str, *, min_rate: float | None, rate: float | None, tolerance: float, price_per_hour: float | None) -> Goal:
    """Raises `BadRequest`."""
    match = _SLO.fullmatch(slo.strip())
    if match is None:
        raise BadRequest(f"--slo {slo!r} cannot be read", hint="write p99=100ms; percentiles are 50, 90, 95, 99 and 99.9")
    if min_rate is not None and rate is not None:
        raise BadRequest("--min-rate and --rate ask different questions", hint="give only one of them")
    return Goal(float(match["percentile"]), seconds_of(match["limit"]), min_rate, rate, tolerance, price_per_hour)


def seconds_of(text: str) -> float:
    """`90s`, `100ms`, `10m`; a number alone is seconds. Raises `BadRequest`."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match["number"]) * _UNITS_S[match["unit"] or "s"] if match else math.nan
    if not 0.0 < seconds < math.inf:
        raise BadRequest(f"{text!r} is not a duration", hint="write 100ms, 90s, 10m or 1h")
    return seconds


def named_dimensions(pairs: Sequence[str], sweep: Path | None) -> dict[str, tuple[Any, ...]]:
    """The dimensions of `--sweep` and `--space`; those of `--space` win. Raises `BadRequest`."""
    from_file: dict[str, tuple[Any, ...]] = {}
    if sweep is not None:
        from_file = checked(read_sweep(sweep))
    return {**from_file, **checked(read_pairs(pairs))}


def subject_of(settings: Settings, name: str) -> TunedModel:
    """The version that serves a caller who names none. Raises `BadRequest`."""
    model = settings.models.get(name)
    if model is None:
        raise BadRequest(f"there is no model {name!r}", hint=f"the declared models are: {', '.join(settings.models) or 'none'}")
    version = model.chosen_version
    spec = next(spec for spec in settings.specs() if (spec.name, spec.version) == (name, version))
    full = model.tables()[version]
    return TunedModel(spec, {key: value for key, value in full.items() if value != default_of(key)})


def default_of(key: str) -> Any:
    """The default of a setting of a model."""
    return version_class().model_fields[key].get_default(call_default_factory=True)
