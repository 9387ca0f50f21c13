"""One batch through a handler: items in, one outcome per item out.

Pure except for the handler's own code: no Redis, no Celery, no files, and time comes from the `clock` passed in. A child can
`prepare` batch n+1 and `complete` batch n-1 while batch n is in `infer`. If a stage raises, the batch is halved until only the
items at fault fail. The stage may therefore see the same values again, and must not change them before it raises. An error of
the device that would repeat for every item is raised as `DeviceFault` instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

from penstock.errors import HandlerContractError, InvalidInput, UnsupportedMedia
from penstock.handlers.contract import NOT_EXPLAINABLE, Failure, failure_of
from penstock.handlers.device_errors import is_broken_device, is_fatal_device_error, is_out_of_memory
from penstock.handlers.loaded import Loaded, Stage
from penstock.handlers.media import encode
from penstock.job import Call
from penstock.workers.child.shard_rows import read_rows, write_rows
from penstock.workers.ipc.frames import BatchDone, Failed, Item, Outcome, Output

Clock = Callable[[], float]


class DeviceFault(Exception):
    """The device, or this process's access to it, is gone: every later call would fail. `broken`: no input can cause that."""

    def __init__(self, message: str, *, broken: bool) -> None:
        super().__init__(message)
        self.message = message
        self.broken = broken


@dataclass(slots=True)
class Flow:
    """A batch or micro-batch between two stages. The thread that has it changes it in place; each thread hands it to the next.

    `values` are those of the items still in play, whose places are `live`; the other items have `failed`. Items at the places
    `to_explain` leave the flow before `inference`, and their explanations are in `explained`. The pipeline sets the moments
    (monotonic): `ready_at`: preprocessed; `began_at` and `ended_at`: on the device.
    """

    size: int
    values: list[Any]
    live: Sequence[int]
    failed: dict[int, Failure] = field(default_factory=dict)
    to_explain: frozenset[int] = frozenset()
    explained: dict[int, Any] = field(default_factory=dict)
    decode_s: float = 0.0
    preprocess_s: float = 0.0
    inference_s: float = 0.0
    largest_ok: int | None = None
    padding: float | None = None
    batch: int = 0
    profile_dir: str = ""
    ready_at: float = 0.0
    began_at: float = 0.0
    ended_at: float = 0.0
    device_wait_s: float = 0.0


class RowsOutcome(NamedTuple):
    """Per row a plain value, bytes or a `Failure`. `largest_ok` is None unless memory ran out: see `_Search.cap`."""

    outputs: list[Any]
    postprocess_s: float
    largest_ok: int | None


def run_batch(loaded: Loaded, items: Sequence[Item], *, clock: Clock = perf_counter) -> BatchDone:
    """All three steps in a row."""
    flow = prepare(loaded, items, clock=clock)
    infer(loaded, flow, clock=clock)
    return complete(loaded, flow, clock=clock)


def prepare(loaded: Loaded, items: Sequence[Item], *, clock: Clock = perf_counter) -> Flow:
    """Read the inputs, which the items hold as `data`, and preprocess them. An input that cannot be read fails alone."""
    began = clock()
    to_explain = frozenset(place for place, item in enumerate(items) if item.call is Call.EXPLAIN)
    flow = Flow(len(items), [_read(loaded, item) for item in items], range(len(items)), to_explain=to_explain)
    return _preprocessed(loaded, flow, began=began, clock=clock)


def prepare_rows(loaded: Loaded, media: str, rows: Sequence[Any], *, clock: Clock = perf_counter) -> Flow:
    """The same for rows of a shard (`penstock.shard`)."""
    began = clock()
    flow = Flow(len(rows), read_rows(loaded.codec, media, list(rows), refusal), range(len(rows)))
    return _preprocessed(loaded, flow, began=began, clock=clock)


def _preprocessed(loaded: Loaded, flow: Flow, *, began: float, clock: Clock) -> Flow:
    read = clock()
    _sift(flow, flow.values)
    _advance(flow, loaded.preprocess, "preprocess")
    flow.decode_s, flow.preprocess_s = read - began, clock() - read
    return flow


def infer(loaded: Loaded, flow: Flow, *, clock: Clock = perf_counter) -> None:
    """Run the device stage on the items that `prepare` left in play."""
    began = clock()
    if flow.to_explain:
        _explain(loaded, flow)
    _advance(flow, loaded.inference, "inference")
    flow.inference_s = clock() - began
    flow.padding = _padding(loaded) if flow.values else None


def _padding(loaded: Loaded) -> float | None:
    """The handler's figure for the batch just run. A fault of the handler costs the figure and not the batch."""
    try:
        return loaded.padding_ratio()
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        sys.stderr.write(f"padding_ratio raised {type(error).__name__}: {error}\n")
        return None


def complete(loaded: Loaded, flow: Flow, *, clock: Clock = perf_counter) -> BatchDone:
    """Postprocess, write the outputs, and put every item back in its place. Writing counts as postprocessing."""
    began = clock()
    _advance(flow, loaded.postprocess, "postprocess")
    outcomes = _placed(flow, [_written(value) for value in flow.values])
    return BatchDone(
        flow.batch,
        outcomes,
        flow.began_at,
        flow.ended_at,
        flow.preprocess_s,
        flow.inference_s,
        clock() - began,
        cap=flow.largest_ok,
        decode_s=flow.decode_s,
        padding=flow.padding,
        device_wait_s=flow.device_wait_s,
    )


def complete_rows(loaded: Loaded, flow: Flow, *, clock: Clock = perf_counter) -> RowsOutcome:
    """Postprocess, make plain values or bytes of the outputs, and put every row back in its place."""
    began = clock()
    _advance(flow, loaded.postprocess, "postprocess")
    outputs = write_rows(flow.values, _unwritable)
    if flow.failed:
        by_place = {**flow.failed, **dict(zip(flow.live, outputs, strict=True))}
        outputs = [by_place[place] for place in range(flow.size)]
    return RowsOutcome(outputs, clock() - began, flow.largest_ok)


def _explain(loaded: Loaded, flow: Flow) -> None:
    """Explain the items that ask for it and take them out of the flow: an explanation passes no later stage."""
    pairs = list(zip(flow.live, flow.values, strict=True))
    asking = [(place, value) for place, value in pairs if place in flow.to_explain]
    rest = [(place, value) for place, value in pairs if place not in flow.to_explain]
    alone = Flow(flow.size, [value for _, value in asking], [place for place, _ in asking])
    _advance(alone, loaded.explain or _not_explainable, "explain")
    flow.values, flow.live = [value for _, value in rest], [place for place, _ in rest]
    flow.failed = {**flow.failed, **alone.failed}
    flow.explained = dict(zip(alone.live, alone.values, strict=True))


def _not_explainable(values: list[Any]) -> list[Failure]:
    failure = Failure("this model gives no explanations: its handler has no explain method", NOT_EXPLAINABLE)
    return [failure] * len(values)


def _read(loaded: Loaded, item: Item) -> Any:
    try:
        return loaded.codec.decode(item.content_type, item.data)
    except Exception as error:  # noqa: BLE001 - see `refusal`
        return refusal(error)


def refusal(error: Exception) -> Failure:
    """Why an input cannot be read. A user's type may run code of its own while it is built (validators), and raise anything."""
    if isinstance(error, (InvalidInput, UnsupportedMedia)):
        return failure_of(error)
    return Failure(f"the input was refused: {type(error).__name__}: {error}"[:1_000], InvalidInput.kind)


def _written(value: Any) -> Outcome:
    try:
        return Output(*encode(value))
    except Exception as error:  # noqa: BLE001 - arrays and user models are written by their own code
        return failed(_unwritable(error))


def _unwritable(error: Exception) -> Failure:
    _raise_if_fatal(error)
    return failure_of(error)


def failed(failure: Failure) -> Failed:
    """A handler's `Failure` as the supervisor gets it."""
    return Failed(failure.code, failure.message, failure.retryable)


def _placed(flow: Flow, outcomes: list[Outcome]) -> list[Outcome]:
    if not flow.failed and not flow.explained:
        return outcomes
    by_place: dict[int, Outcome] = dict(zip(flow.live, outcomes, strict=True))
    by_place |= {place: failed(failure) for place, failure in flow.failed.items()}
    by_place |= {place: _written(value) for place, value in flow.explained.items()}
    return [by_place[place] for place in range(flow.size)]


def _advance(flow: Flow, stage: Stage | None, name: str) -> None:
    """Move the flow through one stage: it gets new values, and the items that fail leave it."""
    if stage is None or not flow.values:
        return
    result = _attempt(stage, name, flow.values)
    if not isinstance(result, list):
        search = _Search(stage, name)
        result = search.halve(flow.values, result)
        flow.largest_ok = search.cap(flow.largest_ok)
    _sift(flow, result)


def _sift(flow: Flow, outputs: list[Any]) -> None:
    """Take the failures among `outputs` out of the flow."""
    # A normal batch has none, and its outputs become the values as they are.
    if Failure not in set(map(type, outputs)):
        flow.values = outputs
        return
    pairs = list(zip(flow.live, outputs, strict=True))
    flow.failed = {**flow.failed, **{place: value for place, value in pairs if isinstance(value, Failure)}}
    kept = [(place, value) for place, value in pairs if not isinstance(value, Failure)]
    flow.values, flow.live = [value for _, value in kept], [place for place, _ in kept]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What a call raised, without the exception: its traceback would keep the batch's memory while the halves run."""

    failure: Failure
    out_of_memory: bool


class _Search:
    """Halves a batch whose stage raised until the items at fault are alone: at most 2n - 1 calls, 7 for one bad item in 8."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._exhausted = False
        self._largest_ok = 0

    def halve(self, values: list[Any], refused: _Refusal) -> list[Any]:
        """One place per value: what the stage made of it, or a `Failure`."""
        self._exhausted = self._exhausted or refused.out_of_memory
        if len(values) == 1:
            return [refused.failure]
        middle = len(values) // 2
        return self._run(values[:middle]) + self._run(values[middle:])

    def cap(self, earlier: int | None) -> int | None:
        """If memory ran out here, the largest batch that passed (0: no item did), or the smaller one of an earlier stage."""
        if not self._exhausted:
            return earlier
        return self._largest_ok if earlier is None else min(earlier, self._largest_ok)

    def _run(self, values: list[Any]) -> list[Any]:
        result = _attempt(self._stage, self._name, values)
        if isinstance(result, _Refusal):
            return self.halve(values, result)
        self._largest_ok = max(self._largest_ok, len(values))
        return result


def _attempt(stage: Stage, name: str, values: list[Any]) -> list[Any] | _Refusal:
    try:
        return _checked(stage(values), len(values), name)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        _raise_if_fatal(error)
        return _Refusal(failure_of(error), is_out_of_memory(error))


def _raise_if_fatal(error: Exception) -> None:
    if is_fatal_device_error(error):
        raise DeviceFault(failure_of(error).message, broken=is_broken_device(error)) from error


def _checked(outputs: Any, count: int, name: str) -> list[Any]:
    """The stage's outputs as a list of `count`; raises `HandlerContractError` for anything else."""
    listed = outputs if type(outputs) is list else _listed(outputs, name)
    if len(listed) != count:
        raise HandlerContractError(
            f"{name} got {count} inputs and returned {len(listed)} outputs; return one per input, a Failure in a bad place"
        )
    return listed


def _listed(outputs: Any, name: str) -> list[Any]:
    if isinstance(outputs, (str, bytes, dict, Failure)) or not hasattr(outputs, "__iter__"):
        raise HandlerContractError(f"{name} returned {type(outputs).__name__}; return a list with one output per input")
    return list(outputs)
