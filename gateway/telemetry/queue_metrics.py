"""The store's counts and the queues' gauges in Prometheus' words, as they were read for one scrape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.records import QueueStats
from penstock.gateway.models.queues import QueueView
from penstock.job import PUBLIC_STATES, JobState

_REDELIVERED = ("crashed", "given_back", "worker_lost")


class StoreFigures(Collector):
    """Read beforehand, because a collector cannot wait. `queues` None: the store could not be read."""

    def __init__(self, queues: Sequence[QueueView] | None, *, workers: int) -> None:
        self._up = queues is not None
        self._queues = queues or ()
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("penstock_store_up", "Whether the store could be read for this scrape", value=float(self._up))
        yield GaugeMetricFamily("penstock_workers", "Worker processes that announce themselves", value=self._workers)
        yield from self._by_priority()
        yield from self._now()
        yield from self._ends()
        yield from self._detours()

    def _by_priority(self) -> Iterator[Metric]:
        labels = ("model", "priority")
        depth = GaugeMetricFamily("penstock_queue_depth", "Jobs waiting", labels=labels)
        oldest = GaugeMetricFamily("penstock_queue_oldest_age_seconds", "Age of the oldest waiting job", labels=labels)
        backlog = GaugeMetricFamily("penstock_queue_backlog_seconds", "Predicted time to drain", labels=labels)
        for queue in self._queues:
            for priority, band in queue.bands.items():
                depth.add_metric((queue.model, priority), band.depth)
                oldest.add_metric((queue.model, priority), band.oldest_age_s)
                if band.backlog_s is not None:
                    backlog.add_metric((queue.model, priority), band.backlog_s)
        yield from (depth, oldest, backlog)

    def _now(self) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily("penstock_jobs_in_flight", "Jobs leased to workers", labels=("model",))
        delayed = GaugeMetricFamily("penstock_jobs_delayed", "Jobs put aside until a retry", labels=("model",))
        slots = GaugeMetricFamily("penstock_slots_ready", "Ready slots over all workers", labels=("model",))
        for queue in self._queues:
            in_flight.add_metric((queue.model,), queue.stats.leased)
            delayed.add_metric((queue.model,), queue.stats.delayed)
            slots.add_metric((queue.model,), queue.ready_slots)
        yield from (in_flight, delayed, slots)

    def _ends(self) -> Iterator[Metric]:
        accepted = CounterMetricFamily("penstock_jobs_accepted", "Jobs stored", labels=("model",))
        jobs = CounterMetricFamily("penstock_jobs", "Jobs ended, by state", labels=("model", "status"))
        dead = CounterMetricFamily("penstock_jobs_dead", "Jobs given up, which are among the failed", labels=("model",))
        for queue in self._queues:
            accepted.add_metric((queue.model,), queue.stats.accepted)
            dead.add_metric((queue.model,), queue.stats.ended.get(JobState.DEAD, 0))
            for status, count in _by_status(queue.stats).items():
                jobs.add_metric((queue.model, status), count)
        yield from (accepted, jobs, dead)

    def _detours(self) -> Iterator[Metric]:
        retried = CounterMetricFamily("penstock_retried", "Runs to be repeated after a delay", labels=("model",))
        stale = CounterMetricFamily("penstock_settled_stale", "Outcomes that came after the lease was lost", labels=("model",))
        again = CounterMetricFamily(
            "penstock_redelivered", "Leased jobs that went back into the queue", labels=("model", "reason")
        )
        for queue in self._queues:
            counters = queue.stats.counters
            retried.add_metric((queue.model,), counters.get("retried", 0))
            stale.add_metric((queue.model,), counters.get("stale", 0))
            for reason in _REDELIVERED:
                again.add_metric((queue.model, reason), counters.get(f"redelivered:{reason}", 0))
        yield from (retried, stale, again)


def _by_status(stats: QueueStats) -> dict[str, int]:
    """Counts by the status that callers see, in which a given-up job has failed."""
    counts = dict.fromkeys(PUBLIC_STATES[2:], 0)
    for state, count in stats.ended.items():
        counts[JobState(state).public] += count
    return counts
