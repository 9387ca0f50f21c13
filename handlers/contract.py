"""The contract between penstock and model code: four stages, a context, and a value for an item that fails alone."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, final

from penstock.errors import HandlerContractError, PenstockError
from penstock.handlers.device_errors import error_text, is_out_of_memory
from penstock.handlers.metrics.metrics import HandlerMetrics
from penstock.handlers.running.call import Reporter, RunningCall, RunningItem
from penstock.model_spec import BatchPolicy, RuntimeOptions

# A message reaches the caller and is stored with the job: long enough for a sentence, too short for a dumped tensor.
_MESSAGE_LIMIT = 1_000
# The code of an item whose model cannot explain itself.
NOT_EXPLAINABLE = "not_explainable"
T = TypeVar("T")
CostStage = Literal["item", "input"]
NO_LIMIT = sys.maxsize
# The end of a traceback names the error, so its beginning is cut.
_TRACEBACK_LIMIT = 16_000
_EVERY_ERROR = (BaseException, object)
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler gets once, before its first batch.

    `folder` holds the source file; the handler has `threads` cores of its own; `runtime` says how model files are to be run;
    no batch is larger than `max_batch_size`. `metrics` makes metrics of the handler's own (docs/reference/metrics.md). What
    is said of `items` and `requests` is for `inference`, and not for the other stages.
    """

    model: str
    version: str = "1"
    device: str = "cpu"
    threads: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    max_batch_size: int = BatchPolicy().max_batch_size
    metrics: HandlerMetrics = field(default_factory=HandlerMetrics, compare=False)
    running: RunningCall = field(default_factory=RunningCall, init=False, repr=False, compare=False)

    @property
    def items(self) -> list[RunningItem]:
        """The items of the call that runs now, in its order: each with `progress` and `cancelled` of its own."""
        return self.running.items

    @property
    def requests(self) -> list[Request[Any]]:
        """What the requests and the jobs of the items say that `inference` or `explain` runs now, in the order of the items.

        `input` is the item as the stage has it. The list is made when it is asked for, and costs a handler that never asks
        nothing. Outside of a worker it is empty. Raises `HandlerContractError` in `preprocess` and `postprocess`.
        """
        return self.running.requests()

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far all items of the call that runs now are; see `RunningItem.progress`."""
        for item in self.items:
            item.progress(fraction, note)

    @property
    def cancelled(self) -> bool:
        """Whether no item of the running call is wanted any more. A handler that runs long checks this between its steps."""
        items = self.items
        return bool(items) and all(item.cancelled for item in items)


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """Stands in a list in the place of an item that failed: its job fails with `code` and `message`, the other items go on.

    A message of more than 1,000 characters is cut. Raises `HandlerContractError` for a code that is not a snake_case word.
    """

    message: str
    code: str = "handler_error"
    retryable: bool = False
    # The names of the exception's class and of its base classes, if one was raised; `retry_on` in the settings may name them.
    kinds: tuple[str, ...] = field(default=(), compare=False, repr=False)
    # For the developer's eyes; empty unless `tracebacks` are kept.
    traceback: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        # Model code may put anything here, such as an exception. Text that UTF-8 cannot hold would end the child process when
        # the failure is sent.
        text = str(self.message)[:_MESSAGE_LIMIT].encode("utf-8", "replace").decode()
        object.__setattr__(self, "message", text)
        if not _CODE.fullmatch(str(self.code)):
            raise HandlerContractError(f"a Failure's code is a snake_case word such as bad_image, not {self.code!r:.80}")


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """What a handler is given per item whose first stage is annotated `list[Request[T]]`; `input` is the item itself.

    `attempt` counts the runs of the job from 1. `headers` (lower-case names) and `query` hold what the model's settings name in
    `request_headers` and `query`, and the caller sent. `owner` is that of the caller's key; empty without one. Outside of a
    job, as in the warm-up, all but `input` have their defaults.
    """

    input: T
    job: str = ""
    attempt: int = 1
    priority: str = "interactive"
    owner: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    # On the monotonic clock of this machine.
    deadline: float = field(default=inf, repr=False)

    @property
    def remaining_s(self) -> float:
        """Seconds until the job's deadline: 0 if it has passed, infinity if there is none."""
        return max(0.0, self.deadline - monotonic())


class OfNoJob(NamedTuple):
    """Items that belong to no job, as in the warm-up: a handler gets defaults for them."""

    values: Sequence[Any]

    def requests(self, places: Sequence[int], reporter: Reporter | None) -> list[Request[Any]]:
        given = (self.values[place] for place in places)
        return [value if isinstance(value, Request) else Request(value) for value in given]


class Handler:
    """Base class of model code; only `inference` is required.

    After `initialize`, each stage takes a list and returns a list of the same length; an item whose place holds a `Failure`
    goes through no further stage. `preprocess` and `postprocess` run beside the `inference` of other batches, each in a thread
    of its own. The class attributes are defaults that a `penstock.toml` may override; they are read without calling
    `initialize`.
    """

    max_batch_size: ClassVar[int | None] = None
    max_wait_s: ClassVar[float | None] = None
    # Media types that inputs may have; None: derived from the type of the items.
    accepts: ClassVar[tuple[str, ...] | None] = None
    # With an `async def inference`: how many items run at once. None: `max_batch_size`.
    max_concurrency: ClassVar[int | None] = None
    # What `cost` is given: an item as `preprocess` returned it, or the input as it came.
    cost_stage: ClassVar[CostStage] = "item"
    # The most items and the most cost, padding included, of one call of `inference`; set it where more is never better.
    call_bounds: tuple[int, float] = (NO_LIMIT, inf)
    # Events that the worker logs as warnings once the model is ready, each with its reason.
    warnings: tuple[tuple[str, str], ...] = ()
    # Whether `inference` sends chunks of its items' streams, although it does not yield them.
    sends_chunks: bool = False
    # One input as the first stage gets it. A worker runs it in batches of every size, and times them, before it is ready.
    sample: Any = None
    # Set these, for instance in `initialize`, where annotations do not say enough.
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    # What really runs the model ("CPUExecutionProvider", ...); shown in the list of workers.
    provider: str = ""
    # Seconds of the first call, if `initialize` made it (with the smallest batch): the warm-up could time only a later one.
    first_call_s: float = 0.0

    def initialize(self, context: Context, /) -> None:
        """Called once per process, before the first batch: load weights onto `context.device`."""

    def preprocess(self, inputs: list[Any], /) -> list[Any]:
        """Inputs as they came in, items for `inference` out: as many, in their order. Runs beside the batch before."""
        return inputs

    def inference(self, batch: list[Any], /) -> list[Any]:
        """The items of one batch in, one output each out, in their order."""
        raise NotImplementedError(f"{type(self).__name__} has no inference(self, batch) method")

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        """What `inference` returned in, what callers get out: as many, in their order. Runs beside the next batch."""
        return outputs

    def cost(self, item: Any, /) -> float:
        """How large an item is, in a unit of the handler's own (tokens, pixels, bytes): a finite number of at least 0.

        Called once per item if a subclass defines it. Items of like cost then run together, in calls of the size that the
        worker finds cheapest. A fault of this method fails nothing: the item counts as the costliest of its batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has no cost(self, item) method")

    def explain(self, batch: list[Any], /) -> list[Any]:
        """Why the model answers as it does, for `POST /explanations/...`: takes what `inference` takes, one answer per item."""
        raise NotImplementedError(f"{type(self).__name__} has no explain(self, batch) method")


def failure_of(error: Exception) -> Failure:
    """The failure of a single item whose stage raised this: class and message of the error."""
    kinds = tuple(kind.__name__ for kind in type(error).__mro__ if kind not in _EVERY_ERROR)
    if isinstance(error, PenstockError):
        return Failure(error.message, error.kind, error.retryable, kinds, _traceback_of(error))
    text, name = error_text(error), type(error).__name__
    code = "oom" if is_out_of_memory(error) else "handler_error"
    return Failure(f"{name}: {text}" if text else name, code, kinds=kinds, traceback=_traceback_of(error))


@dataclass(slots=True)
class Tracebacks:
    """Whether failures in this process, which runs `model`, keep the traceback of their error. Its entry point decides.

    `errors`: the errors themselves, for a debugger; a worker keeps none, because they hold the memory of their batch.
    """

    are_kept: bool = False
    model: str = ""
    errors: list[Exception] | None = None


tracebacks = Tracebacks()


def _traceback_of(error: Exception) -> str:
    """The traceback from the model's code on, without the calls of penstock that led there, and without local variables."""
    if not tracebacks.are_kept:
        return ""
    if tracebacks.errors is not None:
        tracebacks.errors.append(error)
    place = error.__traceback__
    while place is not None and _is_ours(place):
        place = place.tb_next
    text = "".join(traceback.format_exception(type(error), error, place or error.__traceback__))
    if len(text) > _TRACEBACK_LIMIT:
        # Whole lines, because half of a secret would not be masked.
        text = "...\n" + text[-_TRACEBACK_LIMIT:].partition("\n")[2]
    return (text + _next_step(error)).encode("utf-8", "replace").decode()


def _next_step(error: Exception) -> str:
    """The line of the settings that the code misses, where the name of an environment variable alone is the error."""
    # Imported here, because only a process that has failed needs it.
    from penstock.handlers.modules import missing_variable, variable_line

    name = missing_variable(error)
    return f"{name} is not set; {variable_line(name, tracebacks.model)}\n" if name else ""


def _is_ours(place: TracebackType) -> bool:
    return str(place.tb_frame.f_globals.get("__name__")).startswith("penstock.")
