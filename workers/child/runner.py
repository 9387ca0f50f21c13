"""One batch through a handler: items in, one outcome per item out.

Pure except for the handler's own code: no Redis, no Celery, no files, and time comes from the `clock` passed in. A child can
`prepare` batch n+1 and `complete` batch n-1 while batch n is in `infer`. All three raise `DeviceFault` if the device is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.errors import InputUrlFailed, InvalidInput, UnsupportedMedia
from penstock.handlers.contract import NO_LIMIT, NOT_EXPLAINABLE, Failure, failure_of
from penstock.handlers.loaded import Loaded, Stage
from penstock.handlers.media import encode, encode_tensors
from penstock.handlers.running.call import Reporter
from penstock.inputs.request import RequestInput
from penstock.job import REQUEST_MEDIA, TENSORS_MEDIA, Call
from penstock.model_spec import LearnedCalls
from penstock.workers.child.calls.halving import raise_if_fatal
from penstock.workers.child.calls.run import Calls, call_stage
from penstock.workers.child.output_sizes import MOST_BYTES, bounded
from penstock.workers.ipc.frames import (
    EXPIRED_CODE,
    INPUT_MISSING,
    INPUT_MISSING_CODE,
    BatchDone,
    Failed,
    Item,
    JobFacts,
    Outcome,
    Output,
)

if TYPE_CHECKING:
    from penstock.workers.child.input_urls import UrlFetcher

Clock = Callable[[], float]
# The media types of inputs that may be tensors.
_PACKED = (TENSORS_MEDIA, REQUEST_MEDIA)


@dataclass(slots=True)
class Flow:
    """A batch or micro-batch between two stages. The thread that has it changes it in place; each thread hands it to the next.

    `values` are those of the items still in play, whose places are `live`, and whose `costs` are given where they matter; the
    other items have `failed`. Items at the places `to_explain` leave the flow before `inference`, and their explanations are
    in `explained`; those at `in_tensors` came as tensors, and so do their outputs. The threads set the moments (monotonic):
    `ready_at`: preprocessed; `began_at` and `ended_at`: on the device.
    """

    size: int
    values: list[Any]
    live: Sequence[int]
    failed: dict[int, Failure] = field(default_factory=dict)
    to_explain: frozenset[int] = frozenset()
    in_tensors: frozenset[int] = frozenset()
    explained: dict[int, Any] = field(default_factory=dict)
    decode_s: float = 0.0
    preprocess_s: float = 0.0
    inference_s: float = 0.0
    largest_ok: int | None = None
    padding: float | None = None
    costs: list[float] = field(default_factory=list)
    may_try: bool = True
    calls: int = 0
    wish: int = 0
    learned: LearnedCalls | None = None
    batch: int = 0
    # By place. None: the supervisor sends them when the handler asks for them.
    facts: Sequence[JobFacts | None] | None = None
    said: Mapping[int, RequestInput] = field(default_factory=dict)
    profile_dir: str = ""
    ready_at: float = 0.0
    began_at: float = 0.0
    ended_at: float = 0.0
    device_wait_s: float = 0.0
    busy_s: float | None = None

    def requests(self, places: Sequence[int], reporter: Reporter | None) -> list[Any]:
        """The values at these places as `Request`s."""
        # Imported here, because few handlers look at requests.
        from penstock.workers.child.requests import requests_of

        if self.facts is None:
            self.facts = reporter.facts(self.batch) if reporter is not None else ()
        return requests_of(self, places)


def prepare(loaded: Loaded, items: Sequence[Item], calls: Calls, *, clock: Clock = perf_counter) -> Flow:
    """Read the inputs, which the items hold as `data`, and preprocess them. An input that cannot be read fails alone."""
    began = clock()
    return preprocessed(loaded, read(loaded, items), calls, began=began, clock=clock)


def read(loaded: Loaded, items: Sequence[Item]) -> Flow:
    """The flow of these items, each with its input as the first stage gets it, or with a `Failure`."""
    to_explain = frozenset(place for place, item in enumerate(items) if item.call is Call.EXPLAIN)
    said: Mapping[int, RequestInput] = {}
    if loaded.told or loaded.asks:
        from penstock.workers.child.requests import said_of

        items, said = said_of(items)
    in_tensors = frozenset(place for place, item in enumerate(items) if item.content_type in _PACKED and _has_tensors(item))
    flow = Flow(
        len(items), _read_all(loaded, items), range(len(items)), to_explain=to_explain, said=said, in_tensors=in_tensors
    )
    if loaded.asks or (items and items[0].facts is not None):
        flow.facts = [item.facts for item in items]
    if loaded.asks:
        flow.values = flow.requests(flow.live, None)
    return flow


def preprocessed(loaded: Loaded, flow: Flow, calls: Calls, *, began: float, clock: Clock = perf_counter) -> Flow:
    """The flow after the handler's `preprocess`. `began`: when its inputs began to be read."""
    was_read = clock()
    sift(flow, flow.values)
    costs = calls.costs_before(flow.values, flow.live)
    advance(flow, loaded.preprocess, "preprocess", most=loaded.context.max_batch_size)
    flow.costs = calls.costs_after(flow.values, flow.live, costs)
    flow.decode_s, flow.preprocess_s = was_read - began, clock() - was_read
    return flow


def infer(loaded: Loaded, flow: Flow, calls: Calls, *, clock: Clock = perf_counter) -> None:
    """Run the device stage on the items that `prepare` left in play, in calls of items that cost alike."""
    began = clock()
    running = loaded.context.running
    if flow.to_explain:
        explain(loaded, flow)
    if flow.values:
        running.told = flow
        running.batch, running.all, running.call, running.places = flow.batch, flow.live, flow.live, flow.live
        learn = not flow.profile_dir
        done = calls.run(flow.values, flow.costs, clock, may_try=flow.may_try, learn=learn)
        _note_largest(flow, done.largest_ok)
        flow.padding, flow.calls = done.padding, done.calls
        flow.wish, flow.learned = calls.wish(), calls.news()
        running.batch, running.told = 0, None
        sift(flow, done.outputs)
    flow.inference_s = clock() - began


def expire(flow: Flow, places: Collection[int]) -> None:
    """Fail items whose handler saw that their deadline had passed: its output may be incomplete."""
    if places:
        late = Failure("the deadline passed while the job ran, and its handler stopped", EXPIRED_CODE)
        pairs = zip(flow.live, flow.values, strict=True)
        flow.failed = {place: late if place in places else failure for place, failure in flow.failed.items()}
        sift(flow, [late if place in places else value for place, value in pairs])


def complete(loaded: Loaded, flow: Flow, *, clock: Clock = perf_counter) -> BatchDone:
    """Postprocess, write the outputs, and put every item back in its place. Writing counts as postprocessing."""
    began = clock()
    advance(flow, loaded.postprocess, "postprocess", most=loaded.context.max_batch_size)
    outcomes = _placed(flow, _all_written(loaded, flow))
    if sum(len(outcome.data) for outcome in outcomes if isinstance(outcome, Output)) > MOST_BYTES:
        outcomes = bounded(outcomes)
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
        calls=flow.calls,
        wish=flow.wish,
        learned=flow.learned,
        busy_s=flow.busy_s,
    )


def explain(loaded: Loaded, flow: Flow) -> None:
    """Explain the items that ask for it and take them out of the flow: an explanation passes no later stage."""
    pairs = list(zip(flow.live, flow.values, strict=True))
    asking = [(place, value) for place, value in pairs if place in flow.to_explain]
    rest = [(place, value) for place, value in pairs if place not in flow.to_explain]
    alone = Flow(flow.size, [value for _, value in asking], [place for place, _ in asking], batch=flow.batch)
    alone.facts, alone.said = flow.facts, flow.said
    if flow.costs:
        flow.costs = [cost for place, cost in zip(flow.live, flow.costs, strict=True) if place not in flow.to_explain]
    running = loaded.context.running
    running.told, running.batch, running.places = alone, flow.batch, alone.live
    advance(alone, loaded.explain or _not_explainable, "explain")
    running.told, running.batch = None, 0
    flow.facts = alone.facts
    flow.values, flow.live = [value for _, value in rest], [place for place, _ in rest]
    flow.failed = {**flow.failed, **alone.failed}
    flow.explained = dict(zip(alone.live, alone.values, strict=True))


def _not_explainable(values: list[Any]) -> list[Failure]:
    failure = Failure("this model gives no explanations: its handler has no explain method", NOT_EXPLAINABLE)
    return [failure] * len(values)


def _has_tensors(item: Item) -> bool:
    if item.content_type == TENSORS_MEDIA:
        return True
    # Imported here, because few items come with headers or parameters of their request.
    from penstock.inputs.request import decode_request

    try:
        return decode_request(item.data).content_type == TENSORS_MEDIA
    except InvalidInput:
        return False


def _read_all(loaded: Loaded, items: Sequence[Item]) -> list[Any]:
    if not loaded.input_urls:
        return [_read(loaded, item) for item in items]
    # Imported here, because few inputs are fetched.
    return fetcher(loaded).read_all(partial(_read, loaded), items)


def fetcher(loaded: Loaded) -> UrlFetcher:
    from penstock.workers.child.input_urls import fetcher_of

    return fetcher_of(loaded.input_urls, loaded.input_urls_s, ca=loaded.input_urls_ca)


def _read(loaded: Loaded, item: Item) -> Any:
    if item.is_missing:
        return Failure(INPUT_MISSING, INPUT_MISSING_CODE)
    try:
        return loaded.codec.decode(item.content_type, item.data)
    except Exception as error:  # noqa: BLE001 - see `refusal`
        return refusal(error)


def refusal(error: Exception) -> Failure:
    """Why an input cannot be read. A user's type may run code of its own while it is built (validators), and raise anything."""
    if isinstance(error, (InvalidInput, UnsupportedMedia, InputUrlFailed)):
        return failure_of(error)
    return Failure(f"the input was refused: {type(error).__name__}: {error}"[:1_000], InvalidInput.kind)


def _all_written(loaded: Loaded, flow: Flow) -> list[Outcome]:
    media = loaded.output_media
    if not flow.in_tensors:
        return [_written(value, media) for value in flow.values]
    pairs = zip(flow.live, flow.values, strict=True)
    return [_written(value, media, encode_tensors if place in flow.in_tensors else encode) for place, value in pairs]


def _written(value: Any, media: str = "", write: Callable[..., tuple[str, bytes]] = encode) -> Outcome:
    try:
        return Output(*write(value, media=media))
    except Exception as error:  # noqa: BLE001 - arrays and user models are written by their own code
        return failed(unwritable(error))


def unwritable(error: Exception) -> Failure:
    raise_if_fatal(error)
    return failure_of(error)


def failed(failure: Failure) -> Failed:
    """A handler's `Failure` as the supervisor gets it."""
    return Failed(failure.code, failure.message, failure.retryable, failure.kinds, failure.traceback)


def _placed(flow: Flow, outcomes: list[Outcome]) -> list[Outcome]:
    if not flow.failed and not flow.explained:
        return outcomes
    by_place: dict[int, Outcome] = dict(zip(flow.live, outcomes, strict=True))
    by_place |= {place: failed(failure) for place, failure in flow.failed.items()}
    by_place |= {place: _written(value) for place, value in flow.explained.items()}
    return [by_place[place] for place in range(flow.size)]


def advance(flow: Flow, stage: Stage | None, name: str, *, most: int = NO_LIMIT) -> None:
    """Move the flow through one stage: it gets new values, and the items that fail leave it. No call has more than `most`."""
    if stage is None or not flow.values:
        return
    outputs: list[Any] = []
    for first in range(0, len(flow.values), most):
        some, largest_ok = call_stage(
            stage, name, flow.values[first : first + most] if most < len(flow.values) else flow.values
        )
        _note_largest(flow, largest_ok)
        outputs = outputs + some if outputs else some
    sift(flow, outputs)


def _note_largest(flow: Flow, largest_ok: int | None) -> None:
    if largest_ok is not None:
        flow.largest_ok = largest_ok if flow.largest_ok is None else min(largest_ok, flow.largest_ok)


def sift(flow: Flow, outputs: list[Any]) -> None:
    """Take the failures among `outputs` out of the flow."""
    # A normal batch has none, and its outputs become the values as they are.
    if Failure not in set(map(type, outputs)):
        flow.values = outputs
        return
    pairs = list(zip(flow.live, outputs, strict=True))
    flow.failed = {**flow.failed, **{place: value for place, value in pairs if isinstance(value, Failure)}}
    kept = [(place, value) for place, value in pairs if not isinstance(value, Failure)]
    flow.values, flow.live = [value for _, value in kept], [place for place, _ in kept]


def run_batch(loaded: Loaded, items: Sequence[Item], *, calls: Calls | None = None, clock: Clock = perf_counter) -> BatchDone:
    """All three steps in a row, as the tests of a template of `penstock new` run a batch."""
    calls = calls or Calls(loaded)
    flow = prepare(loaded, items, calls, clock=clock)
    infer(loaded, flow, calls, clock=clock)
    return complete(loaded, flow, clock=clock)
