"""What a worker does for versions whose slots follow their work: it starts a scaler as soon as it has such a version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import Counter

from penstock.broker.store.sync import RedisStore
from penstock.model_spec import ScalingInfo, SlotInfo
from penstock.workers.fleet.parts import WorkerHost, WorkerPart
from penstock.workers.fleet.periodic_thread import PeriodicThread

if TYPE_CHECKING:
    from penstock.extensions.autoscaling.worker.autoscaler import Autoscaler
    from penstock.extensions.autoscaling.worker.pod_cost import PodThread
    from penstock.extensions.autoscaling.worker.room import Key


def worker_part(host: WorkerHost) -> WorkerPart:
    scaling = ScalingThread(host)
    return WorkerPart(threads=[scaling, *_pod_threads(host)], on_beat=scaling.on_beat, scaler=scaling)


def _pod_threads(host: WorkerHost) -> Sequence[PodThread]:
    if not host.settings.worker.pod:
        return ()
    # Most workers run in no pod of Kubernetes.
    from penstock.extensions.autoscaling.worker.pod_cost import pod_threads

    return pod_threads(host)


class ScalingThread:
    """See `WorkerThread` and `SlotScaler`. The beat's thread starts it, once its version is announced."""

    def __init__(self, host: WorkerHost) -> None:
        self._host = host
        self._scaled = Counter(
            "penstock_slots_scaled",
            "Changes of a model's number of slots by its work.",
            ["model", "reason"],
            registry=host.metrics,
        )
        self._is_draining = False
        self._scaler: Autoscaler | None = None
        self._thread: PeriodicThread | None = None

    def start(self) -> None:
        """Nothing yet: operators may load such a version later."""

    def on_beat(self, store: RedisStore, slots: Sequence[SlotInfo]) -> None:
        if self._scaler is None and not self._is_draining and self._host.size().automatic():
            self._start()

    def _start(self) -> None:
        # Most workers have no version whose slots follow its work, and do without this import.
        from penstock.extensions.autoscaling.worker.autoscaler import AUTOSCALING_MISSED, LOOK_S, Autoscaler

        host = self._host
        self._scaler = scaler = Autoscaler(
            host.name,
            host.open_store("scale"),
            host.size(),
            workers=host.workers,
            measured=host.measured,
            on_change=self._on_scaled,
            least_stay_s=host.settings.worker.min_stay_s,
            queues=host.queues_of,
        )
        # Celery's main thread may have drained the worker meanwhile.
        scaler.is_draining = self._is_draining
        self._thread = PeriodicThread("scaling", LOOK_S, scaler.run_once, failure_event=AUTOSCALING_MISSED)
        self._thread.start()

    def _on_scaled(self, model: str, reason: str) -> None:
        self._scaled.labels(model, reason).inc()
        self._host.announce()

    def infos(self) -> Mapping[str, dict[str, ScalingInfo]]:
        return self._scaler.infos() if self._scaler else {}

    def memory(self) -> Mapping[Key, int]:
        return self._scaler.memory if self._scaler else {}

    def drain(self) -> None:
        self._is_draining = True
        if self._scaler:
            self._scaler.is_draining = True

    def stop(self) -> None:
        if self._thread and self._scaler:
            self._thread.stop()
            self._scaler.store.close()
