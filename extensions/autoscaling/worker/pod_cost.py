"""Writes to the pod of this worker what its end would cost, so that Kubernetes ends idle workers first.

A ReplicaSet that becomes smaller ends the pods with the lowest `controller.kubernetes.io/pod-deletion-cost` first. Whether a
pod is busy is known only here, so the worker itself writes it, over the API server's HTTPS and with its service account.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from penstock.workers.fleet.parts import WorkerHost
from penstock.workers.fleet.periodic_thread import PeriodicThread

log = structlog.get_logger(__name__)
POD_COST_UNKNOWN = "pod_deletion_cost_not_written"
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
# Where Kubernetes mounts what a pod needs for its API; below /run/secrets, which model code cannot read.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
BUSY = 1000
# Kubernetes asks not to write this often. A worker that had work a moment ago will have some again.
WRITE_EVERY_S = 15.0
_TIMEOUT_S = 5.0
_MOST_REPLY_BYTES = 300


class ApiRefused(Exception):
    """The API server took the request and refused it."""


@dataclass(frozen=True, slots=True)
class PodApi:
    """The API server, as a pod sees it. `account` is a folder with `token`, `ca.crt` and `namespace`."""

    host: str
    port: int
    pod: str
    account: Path = ACCOUNT

    def annotate(self, cost: int) -> None:
        """Raises `OSError`, `http.client.HTTPException` or `ApiRefused`."""
        # Read each time: Kubernetes replaces the token before it expires.
        token, namespace = (self._read(name) for name in ("token", "namespace"))
        trusted = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=_TIMEOUT_S, context=trusted)
        body = json.dumps({"metadata": {"annotations": {ANNOTATION: str(cost)}}})
        headers = {"authorization": f"Bearer {token}", "content-type": "application/merge-patch+json"}
        try:
            connection.request("PATCH", f"/api/v1/namespaces/{namespace}/pods/{self.pod}", body, headers)
            answer = connection.getresponse()
            text = answer.read(_MOST_REPLY_BYTES)
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ApiRefused(f"{answer.status} {answer.reason}: {text.decode('utf-8', 'replace')}")

    def _read(self, name: str) -> str:
        return (self.account / name).read_text("utf-8").strip()


class PodThread(PeriodicThread):
    """See `WorkerThread`. A worker that drains is busy until its last job has ended."""

    def drain(self) -> None: ...


def pod_threads(host: WorkerHost) -> Sequence[PodThread]:
    """None outside Kubernetes."""
    pod = host.settings.worker.pod
    if (api := pod_api(pod, os.environ)) is None:
        log.warning(POD_COST_UNKNOWN, pod=pod, error="KUBERNETES_SERVICE_HOST is not set: worker.pod is for pods only")
        return ()
    cost = PodCost(api, is_holding=host.is_holding, ended=host.ended)
    return (PodThread("pod-cost", WRITE_EVERY_S, cost.run_once, failure_event=POD_COST_UNKNOWN),)


def pod_api(pod: str, environment: Mapping[str, str]) -> PodApi | None:
    """None outside Kubernetes, and for a worker whose settings name no pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    return PodApi(host, int(port), pod) if pod and host and port.isdecimal() else None


class PodCost:
    """Writes the cost when it changes. What goes wrong is logged once, until it goes right again.

    `is_holding`: whether jobs are leased to this worker now. `ended`: how many it has ended, so that a worker whose jobs are
    short is not found idle between two of them.
    """

    def __init__(self, api: PodApi, *, is_holding: Callable[[], bool], ended: Callable[[], int]) -> None:
        self._api = api
        self._is_holding = is_holding
        self._ended = ended
        self._ended_before = 0
        self._written: int | None = None
        self._is_failing = False

    def run_once(self, _: float) -> None:
        cost = BUSY if self._is_busy() else 0
        if cost == self._written:
            return
        try:
            self._api.annotate(cost)
        except (OSError, http.client.HTTPException, ApiRefused, ValueError) as error:
            if not self._is_failing:
                log.warning(POD_COST_UNKNOWN, pod=self._api.pod, error=f"{type(error).__name__}: {error}")
            self._is_failing = True
            return
        self._written, self._is_failing = cost, False

    def _is_busy(self) -> bool:
        before, self._ended_before = self._ended_before, self._ended()
        return self._is_holding() or self._ended_before != before
