"""What a worker counts, in Prometheus' words. Observed once per batch; served only if a port is set."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from penstock.broker.records import Settled
from penstock.errors import ConfigError
from penstock.job import Priority
from penstock.model_spec import ModelSpec, SlotInfo
from penstock.workers.batcher import Held
from penstock.workers.exchange import Finish
from penstock.workers.frames import Done
from penstock.workers.keeper import Cause

_RUN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_WAIT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """An `Observer` of the slots; names as in the table of metrics."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self.registry = registry = CollectorRegistry()
        self._batch_wait = Histogram(
            "penstock_batch_wait_seconds", "Claimed to handler start.", ["model"], buckets=_WAIT_BUCKETS_S, registry=registry
        )
        self._queue_wait = Histogram(
            "penstock_queue_wait_seconds",
            "Accepted to first claimed.",
            ["model", "priority"],
            buckets=_WAIT_BUCKETS_S,
            registry=registry,
        )
        self._duration = Histogram(
            "penstock_job_duration_seconds",
            "Accepted to settled.",
            ["model", "priority"],
            buckets=_WAIT_BUCKETS_S,
            registry=registry,
        )
        # Looking a child up by its labels costs as much as the observation itself, and these two are observed per job.
        self._per_job: dict[tuple[str, Priority], tuple[Histogram, Histogram]] = {}
        self._handler = Histogram(
            "penstock_handler_seconds", "Per stage of a batch.", ["model", "stage"], buckets=_RUN_BUCKETS_S, registry=registry
        )
        self._size = Histogram("penstock_batch_size", "Items per batch.", ["model"], buckets=_SIZE_BUCKETS, registry=registry)
        self._flush = Counter("penstock_batch_flush", "Batches by reason of release.", ["model", "reason"], registry=registry)
        self._restarts = Counter("penstock_worker_restarts", "Children lost.", ["model", "reason"], registry=registry)
        self._up = Gauge("penstock_worker_up", "Ready slots.", ["model", "worker"], registry=registry)
        self._load = Histogram(
            "penstock_model_load_seconds", "Time to load the model.", ["model"], buckets=_WAIT_BUCKETS_S, registry=registry
        )
        self._consumed = Gauge(
            "penstock_worker_last_consumed_timestamp_seconds", "The latest claim.", ["model", "worker"], registry=registry
        )
        self._serving = False

    def serve(self, host: str, port: int) -> None:
        """Open `/metrics` there; port 0 opens nothing and counts nothing. Raises `ConfigError` if the address cannot be had."""
        if not port:
            return
        try:
            start_http_server(port, addr=host, registry=self.registry)
        except OSError as fault:
            raise ConfigError(
                f"the worker's metrics cannot be served on {host} port {port}: {fault.strerror}",
                hint="Choose another worker.metrics_port; each worker of a machine needs its own.",
            ) from fault
        self._serving = True

    def claimed(self, spec: ModelSpec, held: Held) -> None:
        if not self._serving:
            return
        self._consumed.labels(spec.name, self._worker).set(time.time())
        for job in held.jobs:
            # A later run waited for the earlier one too, and a job has one wait only.
            if job.attempts == 1:
                self._of(spec.name, job.priority)[0].observe(max(0.0, held.leased_at - job.created_at))

    def ran(self, spec: ModelSpec, held: Held, done: Done) -> None:
        if not self._serving:
            return
        self._batch_wait.labels(spec.name).observe(max(0.0, done.began_at - held.claimed_at))
        self._size.labels(spec.name).observe(held.size)
        self._flush.labels(spec.name, held.reason).inc()
        stages = {"preprocess": done.preprocess_s, "inference": done.inference_s, "postprocess": done.postprocess_s}
        for stage, seconds in stages.items():
            self._handler.labels(spec.name, stage).observe(seconds)

    def settled(self, spec: ModelSpec, finish: Finish, answers: Sequence[Settled]) -> None:
        if not self._serving:
            return
        now = time.monotonic()
        for job, answer in zip(finish.accepted, answers, strict=True):
            if answer is not Settled.STALE:
                self._of(spec.name, job.priority)[1].observe(max(0.0, now - job.at))

    def _of(self, model: str, priority: Priority) -> tuple[Histogram, Histogram]:
        """Queue wait and duration of such jobs."""
        found = self._per_job.get((model, priority))
        if found is None:
            found = self._queue_wait.labels(model, priority.value), self._duration.labels(model, priority.value)
            self._per_job[model, priority] = found
        return found

    def lost(self, spec: ModelSpec, cause: Cause) -> None:
        self._restarts.labels(spec.name, cause.value).inc()

    def loaded(self, spec: ModelSpec, load_s: float) -> None:
        self._load.labels(spec.name).observe(load_s)

    def unloadable(self, spec: ModelSpec, error: str) -> None: ...

    def slots(self, infos: Sequence[SlotInfo]) -> None:
        for model in {info.model for info in infos}:
            ours = [info for info in infos if info.model == model]
            self._up.labels(model, self._worker).set(sum(info.state == "ready" for info in ours))
