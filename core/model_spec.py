"""What is declared of a model (its code, batching and limits), and what its workers announce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.job import MODEL_NAME, RESERVED_NAME

DEFAULT_VERSION = "1"


class WarmOrigin(StrEnum):
    """Where the input of a warm-up came from."""

    SAMPLE = "sample"  # declared by the handler: like real inputs, so its times count as learned
    SCHEMA = "schema"  # generated: warms code and memory; real inputs may take longer, so its times teach nothing
    NONE = "none"


# One call of the store leases or settles a batch, and all other calls wait for it: CLAIM_MAX in lib.lua.
MAX_BATCH_SIZE = 1_024


def name_fault(name: str) -> str:
    """Why no model may have this name; empty if one may."""
    if name == RESERVED_NAME:
        return f"{RESERVED_NAME!r} is the name of the store's own records; choose another"
    is_name = MODEL_NAME.fullmatch(name)
    return "" if is_name else "names are 1 to 64 letters, digits, '_', '.' or '-', and start with a letter or digit"


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """`max_wait_s` bounds how long an item waits for company when other slots are busy; an idle pool never waits."""

    max_batch_size: int = 8
    max_wait_s: float = 0.010


@dataclass(frozen=True, slots=True)
class Limits:
    """Per model; the reasons for each default stand in docs/reference/settings.md. Durations in seconds, sizes in bytes.

    `retry_on`: codes of failures, and names of exceptions or of their base classes, after which a job is tried again. The delay
    before that grows from `retry_delay_s` twofold up to a minute; chance may shorten it.
    """

    max_queue_depth: int = 10_000
    deadline_s: float = 3_600.0
    bulk_deadline_s: float = 86_400.0
    result_ttl_s: float = 86_400.0
    sync_result_ttl_s: float = 60.0
    max_attempts: int = 3
    retry_on: tuple[str, ...] = ()
    retry_delay_s: float = 1.0
    max_crashes: int = 2
    max_run_s: float = 75.0
    max_stream_bytes: int = 1 << 20
    load_timeout_s: float = 300.0
    memory_limit_bytes: int | None = None
    recycle_after_batches: int | None = None


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How a model file is run; which runtime understands which field stands in docs/reference/runtimes.md.

    `precision` fp32, tf32, bf16 or fp16; `compile` off, default, reduce-overhead or max-autotune; `quantize` off or int8
    (dynamic, on the CPU); `provider` is ONNX Runtime's: auto (by the device), cpu, cuda or tensorrt. A batch is padded to the
    next of `batch_buckets`; none: as it comes. `session` holds options of the runtime's own session, checked by name.
    """

    runtime: str = "auto"
    precision: str = "fp32"
    compile: str = "off"
    quantize: str = "off"
    provider: str = "auto"
    channels_last: bool = False
    cuda_graphs: bool = False
    batch_buckets: tuple[int, ...] = ()
    cache_dir: str = ""
    session: dict[str, Any] = field(default_factory=dict)


def fitted_buckets(buckets: Sequence[int], max_batch_size: int) -> tuple[int, ...]:
    """The buckets for batches of up to `max_batch_size` items: what is larger becomes that size."""
    return tuple(sorted({min(size, max_batch_size) for size in buckets}))


def size_fault(max_batch_size: int) -> str:
    """Why batches may not have this size, and what to do; empty if they may."""
    if 1 <= max_batch_size <= MAX_BATCH_SIZE:
        return ""
    return f"max_batch_size = {max_batch_size} is not between 1 and {MAX_BATCH_SIZE}; the handler or the settings set it"


def bucket_fault(buckets: Sequence[int], max_batch_size: int) -> str:
    """Why `buckets` cannot be used with batches of up to `max_batch_size` items, and what to do; empty if they can."""
    if max(buckets, default=0) <= max_batch_size:
        return ""
    return (
        f"batch_buckets {list(buckets)} go beyond max_batch_size = {max_batch_size}: no batch is larger than that, so "
        f"{max(buckets)} rows would always be part padding; set max_batch_size = {max(buckets)}, "
        f"or batch_buckets = {list(fitted_buckets(buckets, max_batch_size))}"
    )


@dataclass(frozen=True, slots=True)
class Variable:
    """Where an environment variable of a model gets its value from: `text` itself, the variable `of` of the worker's own
    environment, or the content of a file, without the line break at its end. Both are read again for each child process.
    """

    text: str | None = field(default=None, repr=False)
    of: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """How the slots of a version follow its work, in each worker process. Times in seconds.

    At least `min_slots`, at most `max_slots`, unless nothing was asked for during `idle_unload_s`: then none. `goal_s`: waiting
    jobs that would take longer than this are worth more slots.
    """

    min_slots: int
    max_slots: int
    goal_s: float
    idle_unload_s: float | None = None

    def within(self, count: int) -> int:
        return min(max(count, self.min_slots), self.max_slots)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One version of one model as declared in penstock.toml or on the command line.

    `source` is `path/to/file.py[:Name]`, `package.module:Name`, a model file (`*.onnx`, `*.pt2`) or the address of one
    (`hf://`, `s3://`, `https://`), which may be code only with `trust_remote_code`. `slots` is the number of
    child processes per worker process, of devices if `device` is `cuda`; each device then has `slots_per_device` of them, and
    each takes `device_memory_bytes` there. `scaling`: within which bounds that number follows the work; None: it is fixed.
    `placement` is dedicated or shared (docs/reference/workers.md). `threads` are the cores each
    may use (None: an equal share). `options` go to the handler as is. `warm_up`: run every batch size before the first job.
    Only the model's child processes see the variables of `env` and `secrets`; logs and errors show no value of `secrets`.
    """

    name: str
    source: str
    version: str = DEFAULT_VERSION
    policy: BatchPolicy = field(default_factory=BatchPolicy)
    limits: Limits = field(default_factory=Limits)
    slots: int = 1
    threads: int | None = None
    device: str = "cpu"
    slots_per_device: int = 1
    placement: str = "dedicated"
    device_memory_bytes: int | None = None
    scaling: ScalingPolicy | None = None
    options: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Variable] = field(default_factory=dict)
    secrets: dict[str, Variable] = field(default_factory=dict)
    # Headers and query parameters that a submit may bring along for the handler, which gets them in a `Request`.
    request_headers: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    # URLs that inputs may name instead of files: `penstock.outbound.urls`.
    input_urls: tuple[str, ...] = ()
    # A file with the certificates of the authorities that these URLs' servers are trusted by; empty: the public ones.
    input_urls_ca: str = ""
    # A built-in task around a model file (docs/reference/tasks.md); empty: arrays in, arrays out.
    task: str = ""
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    warm_up: bool = True
    # Lines of a requirements file, or `-r PATH` (docs/reference/handlers.md): what the model's code needs installed.
    requirements: tuple[str, ...] = ()
    trust_remote_code: bool = False
    # Store the traceback of what the model's code raises with the failed job, for those who manage the gateway.
    keep_tracebacks: bool = False
    # Each slot records one batch in this many with a profiler (docs/production/profiling.md); None: no batch.
    profile_every: int | None = None
    # What imports a source of an extension's kind in a child, as `module:attribute`; empty: the source is code or a model file.
    loader: str = ""
    # What fills the modules that extensions lend to its code, by the name that the code imports.
    modules: dict[str, str] = field(default_factory=dict)
    # The extension that runs a model without code and source, and what it alone reads of the model.
    driven_by: str = ""
    driven_how: Any = None


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """What the workers of a version announce once it is loaded: JSON Schemas, accepted media types, the handler's
    description. `source`: where a model that was fetched came from, at the revision that this version keeps.
    """

    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    accepts: tuple[str, ...] = ("application/json",)
    description: str = ""
    source: str = ""
    streams: bool = False
    # The media types of the outputs, as the return annotation has them; empty: any.
    answers: tuple[str, ...] = ()
    # For a model that an extension drives: its parts in JSON, as that extension announces them.
    stages: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as the gateway sees it: declared at start, filled in by its workers."""

    name: str
    default_version: str = DEFAULT_VERSION
    policy: BatchPolicy = field(default_factory=BatchPolicy)
    limits: Limits = field(default_factory=Limits)
    versions: dict[str, VersionInfo | None] = field(default_factory=dict)
    request_headers: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    # New jobs go to the first `partitions` queues; the first `held` queues may still hold jobs (docs/production/scale.md).
    partitions: int = 1
    held: int = 1
    # Grows whenever `partitions` changes; below 0 where a gateway knows only its own settings.
    placing: int = 0


def info_of_spec(spec: ModelSpec) -> ModelInfo:
    """What is known of a model of this one version before a worker has loaded it."""
    return ModelInfo(
        spec.name, spec.version, spec.policy, spec.limits, {spec.version: None}, spec.request_headers, query=spec.query
    )


@dataclass(frozen=True, slots=True)
class ProfileWish:
    """An operator wants the next batch of this version recorded; after `until` (Unix seconds by the store's clock) it is
    forgotten.
    """

    id: str
    version: str
    until: float


@dataclass(frozen=True, slots=True)
class ProfileInfo:
    """What a slot makes of a wish: `armed`, then `done` with the `batch` it recorded, or `failed`.

    `folder` lies on the worker's machine. `stages_s` are mean seconds per batch (`queue`: per job) over `batches`; `copy` is of
    the recorded one. `kind`: whose profiler (torch, onnxruntime, python). `note`: what went wrong.
    """

    wish: str
    state: str = "armed"
    batch: str = ""
    folder: str = ""
    kind: str = ""
    note: str = ""
    batches: int = 0
    stages_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LearnedCalls:
    """What a child has learned of the calls of its model: the `measure` of a call's size that explains its run time (`items`,
    `cost`, `padded cost`), the typical seconds by that size, ascending, and how many items a call has at present.
    """

    measure: str
    run_s: tuple[tuple[float, float], ...] = ()
    items_per_call: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotDeviceUse:
    """How busy a GPU was at the last beat, with all its processes. Shares from 0 to 1; None if its driver reports none."""

    used_bytes: int
    share: float | None = None
    memory_share: float | None = None
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One child process of a worker. `state` is loading, ready or failed; `latency_s` maps batch size to learned run time.

    `first_call_s` maps batch size to what its first call took, in the warm-up on an input from `warm_origin` or as the model
    was loaded; `warm_note` says why sizes are missing.
    `device` is as the worker sees it (`cpu`, `cuda:3`); its name and `device_uuid` are empty for the CPU. `node` is the NUMA
    node that holds all its `cores`; None: several, or not pinned. `at_once`: how many items it runs side by side, each a batch
    of its own; 0: one batch after the other. `memory_bytes`: the resident memory of the child at the last beat.
    `device_use`: None for a slot on the CPU. `load_s`: how long the model took to load; `start_s`: from the start of its
    process until it was ready.
    """

    model: str
    version: str
    state: str
    device: str = "cpu"
    pid: int = 0
    cores: tuple[int, ...] = ()
    provider: str = ""
    latency_s: dict[int, float] = field(default_factory=dict)
    load_s: float = 0.0
    error: str = ""
    restarts: int = 0
    first_call_s: dict[int, float] = field(default_factory=dict)
    warm_origin: WarmOrigin = WarmOrigin.NONE
    warm_note: str = ""
    threads: int = 0
    node: int | None = None
    placement: str = "dedicated"
    device_name: str = ""
    device_uuid: str = ""
    profile: ProfileInfo | None = None
    calls: LearnedCalls | None = None
    at_once: int = 0
    start_s: float = 0.0
    memory_bytes: int = 0
    device_use: SlotDeviceUse | None = None


@dataclass(frozen=True, slots=True)
class SlotLocation:
    """Where the jobs of a slot run. It is announced once and kept longer than results, because a job outlives its worker."""

    slot: str
    worker: str
    device: str = ""
    provider: str = ""


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The machine under a worker: the share of its processors that worked since the look before, its load average of a
    minute (processes that run or wait), and its memory.
    """

    cpu_share: float
    load_average: float
    memory_used_bytes: int
    memory_total_bytes: int


@dataclass(frozen=True, slots=True)
class ScalingInfo:
    """What one worker says of a version whose slots follow its work. Durations in seconds.

    `least` and `limit` are as the settings say, `most` is what it could have here: fewer while a device has no room. `slots`:
    how many it is to have. `start_s`, `latency_s` (by batch size) and `memory_bytes` of one slot are as it learned them, also
    while it has none; 0 and empty if it never had one. `loads`: how many slots it started in its life. `reason` of its last
    change, which was at `changed_at` (Unix seconds by the store's clock).
    """

    least: int
    most: int
    limit: int
    slots: int
    start_s: float = 0.0
    latency_s: dict[int, float] = field(default_factory=dict)
    memory_bytes: int = 0
    idle_unload_s: float | None = None
    loads: int = 0
    reason: str = ""
    changed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker process (a supervisor) as it announces itself with every beat. Moments are Unix seconds by the store's
    clock.

    `declared` are the versions that its settings name, by model. `machine`: how busy it is. `wanted`: how many slots it is to
    have, by model and version; None for a worker of an earlier release, which does not say. `followed`: the state of each
    model's rollout that it has taken up. `loads`: whether it has a folder from which it loads versions at run time. `scaling`:
    by model and version, those whose slots follow their work; versions that an operator scaled are not among them. `drained`:
    an operator has it take no jobs. `holding`: how many jobs it has at present. `extensions`: those with functions in the
    store that it has installed; None for a worker of an earlier release.
    """

    name: str
    host: str
    pid: int
    started_at: float
    slots: tuple[SlotInfo, ...] = ()
    seen_at: float = 0.0
    declared: dict[str, tuple[str, ...]] = field(default_factory=dict)
    machine: HostLoad | None = None
    wanted: dict[str, dict[str, int]] | None = None
    followed: dict[str, str] = field(default_factory=dict)
    loads: bool = True
    scaling: dict[str, dict[str, ScalingInfo]] = field(default_factory=dict)
    drained: bool = False
    holding: int = 0
    extensions: tuple[str, ...] | None = None
