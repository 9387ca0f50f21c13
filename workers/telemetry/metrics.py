"""The Prometheus metrics of a worker's slots, counted once per batch, and served only if a port is set.

docs/reference/metrics.md lists every name with its meaning; a test compares the two.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, start_http_server

from penstock.broker.records import Settled
from penstock.errors import ConfigError
from penstock.handlers.metrics.samples import MetricSample
from penstock.job import Priority
from penstock.model_spec import ModelSpec
from penstock.workers.ipc.frames import BatchDone
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.events import Cause
from penstock.workers.slot.context import Observer
from penstock.workers.telemetry.handler_series import HandlerSeries
from penstock.workers.telemetry.histograms import Histogram, Histograms

# With more models than this a worker reports stages and sizes for all models together, and waits in fewer buckets. Otherwise a
# scrape of 50 models would have 11,000 series.
DETAILED_MODELS = 6
ALL = ""
_RUN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_WAIT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
_COARSE_WAIT_BUCKETS_S = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 300.0, 1_800.0)
_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SHARE_BUCKETS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75)

# Leaves out the second series per metric, its time of creation, which no dashboard or alert reads.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _ModelMetrics:
    """The metrics of one model, their labels looked up once: a lookup costs as much as an observation."""

    queue_waits: dict[Priority, Histogram]
    durations: dict[Priority, Histogram]
    batch_wait: Histogram
    stages: tuple[Histogram, Histogram, Histogram]
    decode: Histogram
    store: Histogram
    size: Histogram
    padding: Histogram
    claims: Counter
    items: Counter
    busy: Counter
    rows: Counter
    bad_rows: Counter
    consumed: Gauge


class WorkerMetrics(Observer):
    """What Prometheus scrapes from this worker. It counts nothing until `serve` opened a port."""

    def __init__(self, worker: str, *, models: int = 1) -> None:
        self._worker = worker
        self._detailed = models <= DETAILED_MODELS
        self.registry = registry = CollectorRegistry()
        self._batches = _Batches(registry, _WAIT_BUCKETS_S if self._detailed else _COARSE_WAIT_BUCKETS_S)
        self._flush = Counter("penstock_batch_flush", "Batches by reason of release.", ["model", "reason"], registry=registry)
        self._lost = Counter(
            "penstock_batches_lost", "Batches that the child did not bring back.", ["model", "reason"], registry=registry
        )
        self._restarts = Counter(
            "penstock_worker_restarts",
            "Children that ended by themselves or were replaced.",
            ["model", "reason"],
            registry=registry,
        )
        self._leases = Counter("penstock_lease_losses", "Leases lost or lapsed.", ["model", "reason"], registry=registry)
        self._store_errors = Counter(
            "penstock_store_errors", "Calls that the store did not answer.", ["part"], registry=registry
        )
        self._load = Histograms(
            "penstock_model_load_seconds", "Time to load the model.", ["model"], bounds=_WAIT_BUCKETS_S, registry=registry
        )
        self._handlers = HandlerSeries()
        registry.register(self._handlers)
        self._models: dict[str, _ModelMetrics] = {}
        self.serving = False

    def serve(self, host: str, port: int) -> None:
        """Open `/metrics` there; port 0 opens nothing, and nothing is counted. Raises `ConfigError` if the bind fails."""
        if not port:
            return
        try:
            start_http_server(port, addr=host, registry=self.registry)
        except OSError as fault:
            raise ConfigError(
                f"the worker's metrics cannot be served on {host} port {port}: {fault.strerror}",
                hint="Choose another worker.metrics_port; each worker of a machine needs its own.",
            ) from fault
        self.serving = True

    def on_claimed(self, spec: ModelSpec, batch: Batch) -> None:
        if not self.serving:
            return
        ours = self._of(spec)
        ours.claims.inc()
        ours.items.inc(batch.size)
        ours.consumed.set(time.time())
        for priority, histogram in ours.queue_waits.items():
            # Only first attempts: a job has one wait, and a later attempt also waited for the earlier one to end.
            first = [job for job in batch.jobs if job.attempts == 1 and job.priority is priority]
            waits = [max(0.0, batch.leased_at - job.created_at) for job in first]
            if waits:
                histogram.observe_all(waits)

    def on_said(self, spec: ModelSpec) -> None:
        # A worker that claims nothing for long, because one item takes long, is not stuck.
        if self.serving:
            self._of(spec).consumed.set(time.time())

    def on_ran(self, spec: ModelSpec, batch: Batch, done: BatchDone) -> None:
        if not self.serving:
            return
        ours = self._of(spec)
        if batch.is_shard:
            # A shard is many micro-batches; their sums would distort the histograms of single batches.
            ours.busy.inc(done.inference_s)
            ours.rows.inc(done.rows - done.bad_rows)
            ours.bad_rows.inc(done.bad_rows)
            self._flush.labels(self._shared(spec), batch.reason).inc()
            return
        ours.batch_wait.observe(max(0.0, done.began_at - batch.claimed_at))
        ours.size.observe(batch.size)
        ours.decode.observe(done.decode_s)
        # Batches that overlap keep a slot busy once.
        ours.busy.inc(done.inference_s if done.busy_s is None else done.busy_s)
        for histogram, seconds in zip(ours.stages, (done.preprocess_s, done.inference_s, done.postprocess_s), strict=True):
            histogram.observe(seconds)
        if done.padding is not None:
            ours.padding.observe(done.padding)
        self._flush.labels(self._shared(spec), batch.reason).inc()

    def on_settled(self, spec: ModelSpec, batch: Batch, answers: Sequence[Settled], store_s: float) -> None:
        if not self.serving:
            return
        ours, now = self._of(spec), time.monotonic()
        ours.store.observe(store_s)
        counted = [job for job, answer in zip(batch.jobs, answers, strict=True) if answer is not Settled.STALE]
        for priority, histogram in ours.durations.items():
            durations = [max(0.0, now - batch.accepted_at(job)) for job in counted if job.priority is priority]
            if durations:
                histogram.observe_all(durations)

    def on_lost(self, spec: ModelSpec, cause: Cause, batch: Batch) -> None:
        self._lost.labels(self._shared(spec), cause.value).inc()

    def on_child_ended(self, spec: ModelSpec, why: str) -> None:
        self._restarts.labels(spec.name, why).inc()

    def on_lease_lost(self, spec: ModelSpec, how: str) -> None:
        self._leases.labels(self._shared(spec), how).inc()

    def on_store_failed(self, part: str) -> None:
        self._store_errors.labels(part).inc()

    def on_loaded(self, spec: ModelSpec, load_s: float) -> None:
        self._load.labels(self._shared(spec)).observe(load_s)

    def on_measured(self, spec: ModelSpec, slot: str, samples: Sequence[MetricSample]) -> None:
        if self.serving:
            self._handlers.add(spec, slot, samples)

    def _shared(self, spec: ModelSpec) -> str:
        """The model's label, or one for all models together where a series per model would be too many."""
        return spec.name if self._detailed else ALL

    def _of(self, spec: ModelSpec) -> _ModelMetrics:
        metrics = self._models.get(spec.name)
        if metrics is None:
            metrics = self._batches.bind(spec.name, self._shared(spec), self._worker, priorities=self._detailed)
            self._models[spec.name] = metrics
        return metrics


class _Batches:
    """The metrics of all models that are counted at every batch."""

    def __init__(self, registry: CollectorRegistry, waits_s: Sequence[float]) -> None:
        def spread(name: str, text: str, *labels: str, bounds: Sequence[float]) -> Histograms:
            return Histograms(f"penstock_{name}", text, ("model", *labels), bounds=bounds, registry=registry)

        self._queue_wait = spread("queue_wait_seconds", "Accepted to first claimed.", "priority", bounds=waits_s)
        self._duration = spread("job_duration_seconds", "Accepted to settled.", "priority", bounds=waits_s)
        self._batch_wait = spread("batch_wait_seconds", "Claimed to taken up by the device.", bounds=_WAIT_BUCKETS_S)
        self._handler = spread("handler_seconds", "Stages of a batch in the handler.", "stage", bounds=_RUN_BUCKETS_S)
        self._io = spread("io_seconds", "Reading a batch's inputs, settling it.", "stage", bounds=_RUN_BUCKETS_S)
        self._size = spread("batch_size", "Items per batch.", bounds=_SIZE_BUCKETS)
        self._padding = spread("batch_padding_ratio", "Share of a batch that was padding.", bounds=_SHARE_BUCKETS)
        self._claims = Counter("penstock_claims", "Claims that took jobs.", ["model"], registry=registry)
        self._items = Counter("penstock_claimed_items", "Jobs claimed.", ["model"], registry=registry)
        self._busy = Counter("penstock_slot_busy_seconds", "Seconds of inference.", ["model"], registry=registry)
        self._rows = Counter(
            "penstock_bulk_rows", "Rows of shards by what came of them.", ["model", "outcome"], registry=registry
        )
        self._consumed = Gauge(
            "penstock_worker_last_consumed_timestamp_seconds",
            "The latest claim, or report of an item.",
            ["model", "worker"],
            registry=registry,
        )

    def bind(self, model: str, shared: str, worker: str, *, priorities: bool) -> _ModelMetrics:
        """One model's metrics. `shared`: its name, or empty for one series of all models. `priorities`: a series for each."""
        label_of = {priority: priority.value if priorities else ALL for priority in Priority}
        return _ModelMetrics(
            queue_waits={priority: self._queue_wait.labels(model, label) for priority, label in label_of.items()},
            durations={priority: self._duration.labels(model, label) for priority, label in label_of.items()},
            batch_wait=self._batch_wait.labels(shared),
            stages=(
                self._handler.labels(shared, "preprocess"),
                self._handler.labels(shared, "inference"),
                self._handler.labels(shared, "postprocess"),
            ),
            decode=self._io.labels(shared, "decode"),
            store=self._io.labels(shared, "store"),
            size=self._size.labels(shared),
            padding=self._padding.labels(shared),
            claims=self._claims.labels(model),
            items=self._items.labels(model),
            busy=self._busy.labels(model),
            rows=self._rows.labels(model, "succeeded"),
            bad_rows=self._rows.labels(model, "failed"),
            consumed=self._consumed.labels(model, worker),
        )
