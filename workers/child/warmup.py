"""The runs before a model is ready: every batch size once to pay for its first call, and once more to measure it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from msgspec import structs

from penstock.errors import HandlerContractError, HandlerLoadError, PenstockError
from penstock.handlers.contract import Failure, failure_of
from penstock.handlers.decorator import takes_one_item
from penstock.handlers.device_errors import is_fatal_device_error, is_out_of_memory
from penstock.handlers.example_input import NoExample, example_input
from penstock.handlers.loaded import Loaded
from penstock.handlers.media import JSON
from penstock.model_spec import WarmOrigin, fitted_buckets
from penstock.workers.child.calls.run import Calls
from penstock.workers.ipc.frames import Warm

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The runs before the first job; `note` says why sizes are missing.

    `fits`: if memory ran out, the largest batch that fitted; else None.
    """

    origin: WarmOrigin = WarmOrigin.NONE
    runs: tuple[Warm, ...] = ()
    note: str = ""
    fits: int | None = None


def sizes(limit: int, buckets: Sequence[int] = ()) -> list[int]:
    """The batch sizes to run, ascending: the declared buckets, or else 1, 2, 4 ... and the limit."""
    wanted = buckets or [1 << power for power in range(limit.bit_length() + 1)]
    return list(fitted_buckets([*wanted, limit], limit))


def warm_up(
    loaded: Loaded, wanted: Sequence[int], *, budget_s: float, calls: Calls | None = None, clock: Clock = perf_counter
) -> WarmUp:
    """Run every size on the handler's `sample`, or on an input generated from its schema.

    Ends early if `budget_s` would be exceeded, and at the first size that does not fit into memory. Raises what the handler
    raises on its own sample, and `HandlerLoadError` if it refuses the sample or not even the smallest size fits. What it raises
    on a generated input becomes a note, unless the handler broke its contract: no input is to blame for that. `calls` learns
    from the runs on a sample.
    """
    done = _run(loaded, wanted, calls or Calls(loaded), budget_s=budget_s, clock=clock)
    return replace(done, runs=_with_first_call(done.runs, loaded.handler.first_call_s))


def _run(loaded: Loaded, wanted: Sequence[int], calls: Calls, *, budget_s: float, clock: Clock) -> WarmUp:
    sample: Any = getattr(loaded.handler, "sample", None)
    if sample is not None:
        return _on_sample(loaded, sample, wanted, calls, budget_s=budget_s, clock=clock)
    try:
        generated = _generated(loaded)
        # A function of one item runs the items of a batch one after the other: larger ones would warm nothing else.
        few = wanted[:1] if takes_one_item(loaded.handler) else wanted
        return _run_all(loaded, generated, few, calls, origin=WarmOrigin.SCHEMA, budget_s=budget_s, clock=clock)
    except HandlerContractError:
        raise
    except (NoExample, PenstockError) as error:
        return WarmUp(note=f"no warm-up: {error}; set `sample` on the handler")
    except Exception as error:
        if is_fatal_device_error(error):
            raise
        return WarmUp(
            note=f"no warm-up: an input made from the schema raised {type(error).__name__}; set `sample` on the handler"
        )


def _on_sample(loaded: Loaded, sample: Any, wanted: Sequence[int], calls: Calls, *, budget_s: float, clock: Clock) -> WarmUp:
    try:
        return _run_all(loaded, sample, wanted, calls, origin=WarmOrigin.SAMPLE, budget_s=budget_s, clock=clock)
    except NoExample as error:
        raise HandlerLoadError(
            f"the model cannot be warmed up on its own sample: {error}; set `sample` to an input that it takes"
        ) from error


def _generated(loaded: Loaded) -> Any:
    if loaded.codec.raw or loaded.input_schema is None:
        raise NoExample("the model declares no sample, and no schema of its inputs")
    return loaded.codec.decode(JSON, json.dumps(example_input(loaded.input_schema)).encode())


def _run_all(
    loaded: Loaded, sample: Any, wanted: Sequence[int], calls: Calls, *, origin: WarmOrigin, budget_s: float, clock: Clock
) -> WarmUp:
    runs: list[Warm] = []
    sample = loaded.as_given(sample)
    until = clock() + budget_s
    for size in wanted:
        # Twice the size takes at most about twice the time of the last one. A cold size is better than a load that times out.
        if runs and clock() + 2 * (runs[-1].first_s + runs[-1].run_s) > until:
            note = f"sizes over {runs[-1].size} are not warm: they would take longer than {budget_s:.0f} s"
            return WarmUp(origin, tuple(runs), note)
        run = _timed_if_it_fits(loaded, sample, size, calls, clock, learn=origin is WarmOrigin.SAMPLE)
        if isinstance(run, Failure):
            return WarmUp(origin, tuple(runs), *_what_fits(loaded, runs, size, run))
        runs.append(run)
    return WarmUp(origin, tuple(runs))


def _what_fits(loaded: Loaded, runs: Sequence[Warm], size: int, failure: Failure) -> tuple[str, int]:
    """The note and the largest size that fitted, because `size` did not. Raises `HandlerLoadError` if `size` was the first."""
    if not runs:
        raise HandlerLoadError(
            f"not even a batch of {size} fits into memory on {loaded.context.device}: {failure.message}. Free memory there, "
            "raise memory_limit_bytes if it is set, or serve a smaller model or precision"
        )
    fits = runs[-1].size
    note = f"a batch of {size} does not fit into memory, one of {fits} does: batches begin there; set max_batch_size = {fits}"
    return note, fits


def _timed_if_it_fits(loaded: Loaded, sample: Any, size: int, calls: Calls, clock: Clock, *, learn: bool) -> Warm | Failure:
    """As `_timed`, but a `Failure` if memory ran out: the exception's traceback would keep the batch's memory."""
    try:
        return _timed(loaded, sample, size, calls, clock, learn=learn)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return failure_of(error)


def _with_first_call(runs: tuple[Warm, ...], first_call_s: float) -> tuple[Warm, ...]:
    """A runtime that made the smallest size's first call while it was opened took most of that call's time then."""
    if not runs:
        return runs
    return (structs.replace(runs[0], first_s=max(runs[0].first_s, first_call_s)), *runs[1:])


def _timed(loaded: Loaded, sample: Any, size: int, calls: Calls, clock: Clock, *, learn: bool) -> Warm:
    values = list(loaded.preprocess([sample] * size)) if loaded.preprocess else [sample] * size
    refused = next((value for value in values if isinstance(value, Failure)), None)
    if refused is not None:
        raise NoExample(f"preprocess refused it: {refused.message}")
    began = clock()
    # The first run of a size compiles, allocates and fills caches; the second one takes as long as those of jobs.
    calls.warm(list(values))
    between = clock()
    if not learn and takes_one_item(loaded.handler):
        # Its input is generated and its time teaches nothing, so one call of a function that may be slow is enough.
        return Warm(size, between - began, between - began)
    outputs = calls.warm(values)
    ended = clock()
    if learn:
        calls.on_warmed(values, ended - between)
    if loaded.postprocess:
        loaded.postprocess(outputs)
    return Warm(size, between - began, ended - between)
