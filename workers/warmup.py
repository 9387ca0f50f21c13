"""The runs before a model is ready: every batch size once for the first call's cost, and once more for what jobs will see."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from penstock.errors import HandlerContractError, PenstockError
from penstock.handlers.example_input import NoExample, example_input
from penstock.handlers.handler import Failure, fatal_device_error
from penstock.handlers.loaded import Loaded
from penstock.handlers.media import JSON
from penstock.model_spec import WarmOrigin

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class WarmRun:
    """One batch size: seconds of its first call, and of the next one."""

    size: int
    first_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What was run before the first job; `note` says why sizes are missing."""

    origin: WarmOrigin = WarmOrigin.NONE
    runs: tuple[WarmRun, ...] = ()
    note: str = ""


def sizes(limit: int, buckets: Sequence[int] = ()) -> list[int]:
    """The batch sizes to run, ascending: the declared buckets, or else 1, 2, 4 ... and the limit."""
    wanted = buckets or [1 << power for power in range(limit.bit_length() + 1)]
    return sorted({min(limit, size) for size in [*wanted, limit]})


def warm_up(loaded: Loaded, wanted: Sequence[int], *, budget_s: float, clock: Clock = perf_counter) -> WarmUp:
    """Run every size on the handler's `sample`, or on an input made from its schema; ends early before `budget_s` is over.

    Raises what the handler raises on its own sample; what it raises on a generated one is a note, unless it broke the contract:
    no input is to blame for that.
    """
    sample: Any = getattr(loaded.handler, "sample", None)
    if sample is not None:
        runs, note = _run_all(loaded, sample, wanted, budget_s=budget_s, clock=clock)
        return WarmUp(WarmOrigin.SAMPLE, runs, note)
    try:
        generated = _generated(loaded)
        runs, note = _run_all(loaded, generated, wanted, budget_s=budget_s, clock=clock)
    except HandlerContractError:
        raise
    except (NoExample, PenstockError) as error:
        return WarmUp(note=f"no warm-up: {error}; set `sample` on the handler")
    except Exception as error:
        if fatal_device_error(error):
            raise
        return WarmUp(
            note=f"no warm-up: an input made from the schema raised {type(error).__name__}; set `sample` on the handler"
        )
    return WarmUp(WarmOrigin.SCHEMA, runs, note)


def _generated(loaded: Loaded) -> Any:
    if loaded.codec.raw or loaded.input_schema is None:
        raise NoExample("the model declares no sample, and no schema of its inputs")
    return loaded.codec.decode(JSON, json.dumps(example_input(loaded.input_schema)).encode())


def _run_all(
    loaded: Loaded, sample: Any, wanted: Sequence[int], *, budget_s: float, clock: Clock
) -> tuple[tuple[WarmRun, ...], str]:
    runs: list[WarmRun] = []
    until = clock() + budget_s
    for size in wanted:
        # Twice the size takes at most about twice the time of the last; better one size cold than a load that times out.
        if runs and clock() + 2 * (runs[-1].first_s + runs[-1].run_s) > until:
            return tuple(runs), f"sizes over {runs[-1].size} are not warm: they would take longer than {budget_s:.0f} s"
        runs.append(_timed(loaded, sample, size, clock))
    return tuple(runs), ""


def _timed(loaded: Loaded, sample: Any, size: int, clock: Clock) -> WarmRun:
    values = list(loaded.preprocess([sample] * size)) if loaded.preprocess else [sample] * size
    refused = next((value for value in values if isinstance(value, Failure)), None)
    if refused is not None:
        raise NoExample(f"preprocess refused it: {refused.message}")
    began = clock()
    # The first run of a size compiles, allocates, fills caches; the second is what jobs will see.
    loaded.inference(list(values))
    between = clock()
    outputs = loaded.inference(values)
    ended = clock()
    if loaded.postprocess:
        loaded.postprocess(list(outputs))
    return WarmRun(size, between - began, ended - between)
