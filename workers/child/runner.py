"""One batch through a handler: bytes in, one outcome per item out.

Pure but for the handler's own code: no Redis, no Celery, no files; time comes from the `clock` passed in. Three steps, so that
a child can `prepare` batch n+1 and `complete` batch n-1 while batch n is in `infer`. A stage that raises is bisected, so that
only the items at fault fail; it may therefore see the same values again, and must not change them before it raises. An error of
the device that would repeat for every item is not: it is passed on as `DeviceFault`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, NamedTuple

from penstock.errors import HandlerContractError, InvalidInput, UnsupportedMedia
from penstock.handlers.contract import NOT_EXPLAINABLE, Failure, failure_of
from penstock.handlers.device_errors import is_broken_device, is_fatal_device_error, is_out_of_memory
from penstock.handlers.loaded import Loaded, Stage
from penstock.handlers.media import encode
from penstock.job import Call
from penstock.workers.child.shard_rows import read_rows, write_rows

Clock = Callable[[], float]


class Item(NamedTuple):
    """One job's input."""

    content_type: str
    data: bytes
    call: Call = Call.PREDICT


class Output(NamedTuple):
    """One job's output."""

    content_type: str
    data: bytes


Outcome = Output | Failure


class DeviceFault(Exception):
    """The device, or this process's hold on it, is gone: every later call would fail. `broken`: no input can have done it."""

    def __init__(self, message: str, *, broken: bool) -> None:
        super().__init__(message)
        self.message = message
        self.broken = broken


@dataclass(frozen=True, slots=True)
class Flow:
    """A batch between two stages: `values` of the items still in play, whose places are `live`; the others have `failed`.

    The places `asked` for an explanation leave the flow before `inference`; what came of them is in `explained`.
    """

    size: int
    values: list[Any]
    live: Sequence[int]
    failed: dict[int, Failure]
    asked: frozenset[int] = frozenset()
    explained: dict[int, Any] = field(default_factory=dict)
    decode_s: float = 0.0
    preprocess_s: float = 0.0
    inference_s: float = 0.0
    largest_ok: int | None = None
    padding: float | None = None


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """One outcome per item, in order, and seconds per stage (reading the inputs is decode, writing counts as postprocess).

    `largest_ok` is None unless a stage ran out of memory; then it is the largest batch that still passed (0: not even one
    item), to which the caller should cap the next batches. `padding`: which share of the batch was, where the handler tells.
    """

    outcomes: list[Outcome]
    preprocess_s: float = 0.0
    inference_s: float = 0.0
    postprocess_s: float = 0.0
    largest_ok: int | None = None
    decode_s: float = 0.0
    padding: float | None = None


class RowsOutcome(NamedTuple):
    """Per row a plain value, bytes or a `Failure`; `largest_ok` as in `BatchOutcome`."""

    outputs: list[Any]
    postprocess_s: float
    largest_ok: int | None


def run_batch(loaded: Loaded, items: Sequence[Item], *, clock: Clock = perf_counter) -> BatchOutcome:
    """All three steps in a row."""
    return complete(loaded, infer(loaded, prepare(loaded, items, clock=clock), clock=clock), clock=clock)


def prepare(loaded: Loaded, items: Sequence[Item], *, clock: Clock = perf_counter) -> Flow:
    """Read the inputs and preprocess them. An input that cannot be read fails alone."""
    started = clock()
    asked = frozenset(place for place, item in enumerate(items) if item.call is Call.EXPLAIN)
    values = [_read(loaded, item) for item in items]
    return _preprocessed(loaded, Flow(len(items), [], range(len(items)), {}, asked), values, started=started, clock=clock)


def prepare_rows(loaded: Loaded, media: str, rows: Sequence[Any], *, clock: Clock = perf_counter) -> Flow:
    """The same for rows of a shard (`penstock.shard`)."""
    started = clock()
    values = read_rows(loaded.codec, media, list(rows), refused)
    return _preprocessed(loaded, Flow(len(rows), [], range(len(rows)), {}), values, started=started, clock=clock)


def _preprocessed(loaded: Loaded, flow: Flow, values: list[Any], *, started: float, clock: Clock) -> Flow:
    read = clock()
    flow = _advance(_sift(flow, values), loaded.preprocess, "preprocess")
    return replace(flow, decode_s=read - started, preprocess_s=clock() - read)


def infer(loaded: Loaded, flow: Flow, *, clock: Clock = perf_counter) -> Flow:
    """Run the device stage on what `prepare` left in play."""
    started = clock()
    ran = _advance(_explained(loaded, flow) if flow.asked else flow, loaded.inference, "inference")
    return replace(ran, inference_s=clock() - started, padding=_padding(loaded) if ran.values else None)


def _padding(loaded: Loaded) -> float | None:
    """What the handler says of the batch just run. A fault of it costs the figure and not the batch."""
    try:
        return loaded.padding_ratio()
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        sys.stderr.write(f"padding_ratio raised {type(error).__name__}: {error}\n")
        return None


def complete(loaded: Loaded, flow: Flow, *, clock: Clock = perf_counter) -> BatchOutcome:
    """Postprocess, write the outputs, and put every item back in its place."""
    started = clock()
    done = _advance(flow, loaded.postprocess, "postprocess")
    outcomes = _placed(done, [_written(value) for value in done.values])
    return BatchOutcome(
        outcomes, done.preprocess_s, done.inference_s, clock() - started, done.largest_ok, done.decode_s, done.padding
    )


def complete_rows(loaded: Loaded, flow: Flow, *, clock: Clock = perf_counter) -> RowsOutcome:
    """Postprocess, make plain values or bytes of the outputs, and put every row back in its place."""
    started = clock()
    done = _advance(flow, loaded.postprocess, "postprocess")
    outputs = write_rows(done.values, _unwritten)
    if done.failed:
        by_place = {**done.failed, **dict(zip(done.live, outputs, strict=True))}
        outputs = [by_place[place] for place in range(done.size)]
    return RowsOutcome(outputs, clock() - started, done.largest_ok)


def _explained(loaded: Loaded, flow: Flow) -> Flow:
    """The flow without the items to be explained, which are done: an explanation passes no later stage."""
    pairs = list(zip(flow.live, flow.values, strict=True))
    mine = [(place, value) for place, value in pairs if place in flow.asked]
    rest = [(place, value) for place, value in pairs if place not in flow.asked]
    alone = Flow(flow.size, [value for _, value in mine], [place for place, _ in mine], {})
    done = _advance(alone, loaded.explain or _unexplainable, "explain")
    return replace(
        flow,
        values=[value for _, value in rest],
        live=[place for place, _ in rest],
        failed={**flow.failed, **done.failed},
        explained=dict(zip(done.live, done.values, strict=True)),
    )


def _unexplainable(values: list[Any]) -> list[Failure]:
    failure = Failure("this model gives no explanations: its handler has no explain method", NOT_EXPLAINABLE)
    return [failure] * len(values)


def _read(loaded: Loaded, item: Item) -> Any:
    try:
        return loaded.codec.decode(item.content_type, item.data)
    except Exception as error:  # noqa: BLE001 - see `refused`
        return refused(error)


def refused(error: Exception) -> Failure:
    """What becomes of an input that cannot be read. A user's type may run code of its own while it is built (validators)."""
    if isinstance(error, (InvalidInput, UnsupportedMedia)):
        return failure_of(error)
    return Failure(f"the input was refused: {type(error).__name__}: {error}"[:1_000], InvalidInput.kind)


def _written(value: Any) -> Outcome:
    try:
        return Output(*encode(value))
    except Exception as error:  # noqa: BLE001 - arrays and user models are written by their own code
        return _unwritten(error)


def _unwritten(error: Exception) -> Failure:
    _pass_on(error)
    return failure_of(error)


def _placed(flow: Flow, outcomes: list[Outcome]) -> list[Outcome]:
    if not flow.failed and not flow.explained:
        return outcomes
    told = {place: _written(value) for place, value in flow.explained.items()}
    by_place: dict[int, Outcome] = {**flow.failed, **told, **dict(zip(flow.live, outcomes, strict=True))}
    return [by_place[place] for place in range(flow.size)]


def _advance(flow: Flow, stage: Stage | None, name: str) -> Flow:
    """The flow after one stage: new values, and the items that failed in it taken out."""
    if stage is None or not flow.values:
        return flow
    result = _attempt(stage, name, flow.values)
    if isinstance(result, list):
        return _sift(flow, result)
    search = _Search(stage, name)
    outputs = search.halve(flow.values, result)
    return _sift(replace(flow, largest_ok=search.cap(flow.largest_ok)), outputs)


def _sift(flow: Flow, outputs: list[Any]) -> Flow:
    """Move the failures among `outputs` out of the flow; the normal batch has none and is passed on as it is."""
    if Failure not in set(map(type, outputs)):
        return replace(flow, values=outputs)
    pairs = list(zip(flow.live, outputs, strict=True))
    failed = {place: value for place, value in pairs if isinstance(value, Failure)}
    kept = [(place, value) for place, value in pairs if not isinstance(value, Failure)]
    return replace(
        flow, values=[value for _, value in kept], live=[place for place, _ in kept], failed={**flow.failed, **failed}
    )


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A call that raised. Not the exception itself: its traceback would hold the batch's memory while the halves run."""

    failure: Failure
    out_of_memory: bool


class _Search:
    """Halves a batch whose stage raised until the items at fault stand alone: at most 2n - 1 calls, 7 for one bad item in 8."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._exhausted = False
        self._largest_ok = 0

    def halve(self, values: list[Any], refusal: _Refusal) -> list[Any]:
        """One place per value: what the stage made of it, or a `Failure`."""
        self._exhausted = self._exhausted or refusal.out_of_memory
        if len(values) == 1:
            return [refusal.failure]
        middle = len(values) // 2
        return self._run(values[:middle]) + self._run(values[middle:])

    def cap(self, earlier: int | None) -> int | None:
        """The largest size that passed, if memory ran out here; no more than an earlier stage allowed."""
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
        _pass_on(error)
        return _Refusal(failure_of(error), is_out_of_memory(error))


def _pass_on(error: Exception) -> None:
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
