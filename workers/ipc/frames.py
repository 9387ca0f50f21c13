"""The messages between a supervisor and its child, one record each."""

from __future__ import annotations

from math import inf
from typing import Any

from msgspec import Struct

from penstock.handlers.metrics.samples import MetricSample
from penstock.job import Call
from penstock.model_spec import LearnedCalls, RuntimeOptions, WarmOrigin

# The error codes of a job whose handler stopped at its deadline, of one whose input is missing, and of one whose input is
# still being read: that job has not run, and is to be given again (D150).
EXPIRED_CODE = "expired"
INPUT_READING_CODE = "input_reading"
INPUT_MISSING_CODE = "input_missing"
INPUT_MISSING = (
    "its input is not where the worker looks for it; gateway and workers must share the folder store.blob_dir or "
    "the object store store.blob_url"
)


class LoadModel(Struct, tag="load", array_like=True):
    """The first frame to a child: which model it serves. `cores` empty: no pinning. Sizes in bytes. Parts as in `load`."""

    model: str
    version: str
    source: str
    device: str = "cpu"
    threads: int = 1
    cores: tuple[int, ...] = ()
    max_batch_size: int = 8
    memory_limit_bytes: int = 0
    options: dict[str, Any] = {}
    task: str = ""
    runtime: RuntimeOptions = RuntimeOptions()
    warm_up: bool = True
    warm_budget_s: float = 60.0
    requirements: tuple[str, ...] = ()
    keep_tracebacks: bool = False
    # Headers or query parameters that the settings name, and that only a handler of `Request`s could get.
    told: tuple[str, ...] = ()
    max_run_s: float = 75.0
    max_stream_bytes: int = 1 << 20
    # The rules for URLs in inputs, and the seconds that the files of one input may take.
    input_urls: tuple[str, ...] = ()
    input_urls_s: float = 10.0
    input_urls_ca: str = ""
    loader: str = ""
    modules: dict[str, str] = {}


class JobFacts(Struct, array_like=True, gc=False):
    """What a handler may ask about an item's job. `deadline` is monotonic, on the clock that all processes of a machine share.

    Without a job, all fields have their defaults.
    """

    job: str = ""
    attempt: int = 1
    priority: str = "interactive"
    owner: str = ""
    deadline: float = inf


class Item(Struct, array_like=True, gc=False):
    """One job's input: in `data`, or in the file `path`. `own`: that file is a copy, to be deleted when the batch is back.

    With a `length`, it is `length` bytes of that file from `offset`, with CRC-32 `checksum`. `is_missing`: it was not found.
    `facts` are those of its job: of a shard always, else if the handler asks for them.
    """

    content_type: str
    data: bytes = b""
    path: str = ""
    call: Call = Call.PREDICT
    own: bool = False
    offset: int = 0
    length: int = -1
    checksum: int = 0
    is_missing: bool = False
    facts: JobFacts | None = None


class RunBatch(Struct, tag="run", array_like=True):
    """Run these items as one batch; `batch` counts from 1 per child. `profile_dir`: the folder to record it in, if any.

    `urgent`: deadlines are near, so nothing is tried on it.
    """

    batch: int
    items: list[Item]
    profile_dir: str = ""
    urgent: bool = False


class RunShard(Struct, tag="shard", array_like=True):
    """Run the rows of this item in micro-batches, after the shards before it; `shard` counts from 1 per child."""

    shard: int
    item: Item


class GiveUp(Struct, tag="give_up", array_like=True):
    """The items at these places of the batch are no longer wanted. Their outcomes are still awaited.

    `late`: their deadlines have passed; else their end was requested.
    """

    batch: int
    places: list[int]
    late: bool = False


class BatchFacts(Struct, tag="facts", array_like=True):
    """The facts of the batch's jobs, in the order of its items; none if the batch is no longer awaited."""

    batch: int
    facts: list[JobFacts]


class StopChild(Struct, tag="stop", array_like=True):
    """No more batches will come: finish those received and exit."""


class Output(Struct, tag="out", array_like=True, gc=False):
    """One job's output."""

    content_type: str
    data: bytes


class Failed(Struct, tag="bad", array_like=True, gc=False):
    """Why one job has no output: a handler's `Failure`."""

    code: str
    message: str
    retryable: bool = False
    kinds: tuple[str, ...] = ()
    traceback: str = ""


Outcome = Output | Failed


class Warm(Struct, array_like=True):
    """One batch size of the warm-up: seconds of its first call, and of the second."""

    size: int
    first_s: float
    run_s: float


class Ready(Struct, tag="ready", array_like=True):
    """The model is loaded. `schemas`: the input's and the output's. `warm` was run on an input from `warm_origin`.

    `fits`: the largest batch that fitted, if memory ran out in the warm-up. `asks`: the handler wants the facts of items' jobs.
    `at_once`: how many items run side by side, each to be given as a batch of its own; 0: batches run one after the other.
    `warnings`: events to be logged, each with its reason. `stages`: of a driven model.
    """

    load_s: float
    provider: str = ""
    description: str = ""
    accepts: tuple[str, ...] = ("application/json",)
    schemas: tuple[dict[str, Any] | None, dict[str, Any] | None] = (None, None)
    warm: list[Warm] = []
    warm_origin: WarmOrigin = WarmOrigin.NONE
    warm_note: str = ""
    max_batch_size: int | None = None
    max_wait_s: float | None = None
    fits: int | None = None
    asks: bool = False
    streams: bool = False
    answers: tuple[str, ...] = ()
    at_once: int = 0
    warnings: tuple[tuple[str, str], ...] = ()
    stages: tuple[dict[str, Any], ...] = ()


class LoadFailed(Struct, tag="unloadable", array_like=True):
    message: str


class BatchDone(Struct, tag="done", array_like=True):
    """One outcome per item, in order; none if the batch was recalled. Seconds per stage; reading the inputs is `decode_s`.

    Moments are monotonic, on the clock that all processes of a machine share. `cap`: if the batch did not fit into memory, the
    largest part of it that did (0: none); else None. `padding`: the share of the batch that was padding, if the handler says.
    `device_wait_s`: how long the batch was ready while another was at the device. `rows`: of a shard; `bad_rows` of them have
    no output. `calls`: of the model. `wish`: how many items the next batch should have at most, 0: as many as one call may
    have. `learned`: what is new about calls, from time to time. `busy_s`: where batches overlap, the seconds since the last one
    that ended in which any ran; else None.
    """

    batch: int
    outcomes: list[Outcome]
    began_at: float
    ended_at: float
    preprocess_s: float
    inference_s: float
    postprocess_s: float
    cap: int | None = None
    decode_s: float = 0.0
    padding: float | None = None
    device_wait_s: float = 0.0
    rows: int = 0
    bad_rows: int = 0
    calls: int = 0
    wish: int = 0
    learned: LearnedCalls | None = None
    busy_s: float | None = None


class ShardDone(Struct, tag="shard_done", array_like=True):
    """`done` has one outcome, or none if the shard was recalled. Its seconds are sums over `calls` micro-batches."""

    shard: int
    done: BatchDone
    calls: int = 0


class ItemReport(Struct, array_like=True, gc=False):
    """What the item at this place of its batch says: how far it is (None: nothing new), and the next `chunks` of its stream.

    `restarts`: how often its stream has restarted, because its call was repeated.
    """

    place: int
    fraction: float | None = None
    note: str = ""
    restarts: int = 0
    chunks: list[bytes] = []


class ItemReports(Struct, tag="said", array_like=True):
    """Reports of items of the running batch; also a sign of life."""

    batch: int
    reports: list[ItemReport]


class WantFacts(Struct, tag="wants", array_like=True):
    """The handler looks at the requests of this batch, and will look at those of later ones."""

    batch: int


class DeviceLost(Struct, tag="device", array_like=True):
    """The last frame of a child whose device fails every call. `broken`: no input can have caused it."""

    message: str
    broken: bool = False


class MetricSamples(Struct, tag="metrics", array_like=True):
    """What the handler counted since the last such frame; sent with the batches during which something changed."""

    samples: list[MetricSample]


ToChild = LoadModel | RunBatch | RunShard | GiveUp | BatchFacts | StopChild
FromChild = Ready | LoadFailed | BatchDone | ShardDone | ItemReports | WantFacts | MetricSamples | DeviceLost
