"""What TorchServe's routes, both inference and management, have in common with the rest of a gateway."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from penstock.broker.store.aio import AsyncStore
from penstock.gateway.asgi.wire import BodyMemory
from penstock.gateway.auth.audit import AuditLog
from penstock.gateway.auth.keys import Caller, KeyAuth, Shares
from penstock.gateway.jobs.predict import PredictEndpoint
from penstock.gateway.jobs.results import ResultReader
from penstock.gateway.jobs.submitting.submitter import Submitter
from penstock.gateway.models.changes import ModelChanges
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.options import GatewayOptions, TorchServeOptions
from penstock.gateway.telemetry.health import Health
from penstock.gateway.telemetry.metrics import GatewayMetrics

Places = Callable[[Caller], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class TorchServeParts:
    """`requests`: places of short requests. `streaming`, `reading`: places of clients that take long."""

    options: GatewayOptions
    own: TorchServeOptions
    auth: KeyAuth
    audit: AuditLog
    predict: PredictEndpoint
    submitter: Submitter
    store: AsyncStore
    registry: ModelRegistry
    changes: ModelChanges
    results: ResultReader
    metrics: GatewayMetrics
    uploads: BodyMemory
    health: Health
    requests: Shares
    streaming: Places
    reading: Places
