"""The services that doors are built from, as one record (docs/design/extensions.md)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.broker.blobs.files import BlobStore
from penstock.broker.blobs.space import DiskReserve, FileCensus
from penstock.broker.blobs.uploads import FileStore
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.runs import AsyncRunStore
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.asgi.wire import MAX_BODIES_BYTES, BodyMemory
from penstock.gateway.auth.audit import AuditLog
from penstock.gateway.auth.key_beat import KeyBeat
from penstock.gateway.auth.keys import Caller, KeyAuth, Shares
from penstock.gateway.auth.lists import Lists
from penstock.gateway.auth.roles import WaitingResponses
from penstock.gateway.jobs.events.follow import JobFollower
from penstock.gateway.jobs.extending import JobsHost, OnChosen, Tracer, WordReader, jobs_parts
from penstock.gateway.jobs.inbox import Inbox
from penstock.gateway.jobs.predict import PredictEndpoint
from penstock.gateway.jobs.replay import Replays
from penstock.gateway.jobs.results import ResultReader
from penstock.gateway.jobs.submitting.preferred_wait import PreferredWait
from penstock.gateway.jobs.submitting.submitter import GatewayJobLog, Submitter
from penstock.gateway.models.changes import ModelChanges
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.operations import Operations
from penstock.gateway.runs.file_quota import FileQuota
from penstock.gateway.runs.service import RunService
from penstock.gateway.runs.uploads import FileUploads
from penstock.gateway.telemetry.health import Health
from penstock.gateway.telemetry.metrics import GatewayMetrics
from penstock.settings.keys import is_loopback

if TYPE_CHECKING:
    from penstock.settings.tables import Settings

Held = AbstractContextManager[None]


@dataclass(frozen=True)
class Services:
    """`requests`, `predictions`, `streams`: the permits of callers, by what they wait for. `shares_port`: siblings bind
    the same port. `on_chosen`: called for each stored job whose version a chooser picked.

    The properties below the fields are made from them on first use.
    """

    settings: Settings
    store: AsyncStore
    blobs: BlobStore
    lifetime: Lifetime
    tracer: Tracer | None
    auth: KeyAuth
    metrics: GatewayMetrics
    registry: ModelRegistry
    uploads: BodyMemory
    requests: Shares
    predictions: Shares
    streams: Shares
    waiting: WaitingResponses
    words: WordReader
    on_chosen: Sequence[OnChosen]
    shares_port: bool

    @property
    def shows_metrics(self) -> bool:
        """Whether /metrics is served beside the API: never on a port that siblings share, where each scrape would reach another
        process, and every counter would jump.
        """
        table = self.settings.gateway
        return is_loopback(table.host) and not table.metrics_port and not self.shares_port

    @cached_property
    def submitter(self) -> Submitter:
        return Submitter(self)

    @cached_property
    def results(self) -> ResultReader:
        return ResultReader(self.store, self.blobs)

    @cached_property
    def follower(self) -> JobFollower:
        return JobFollower(self.store, heartbeat_s=self.settings.gateway.heartbeat_s)

    @cached_property
    def job_log(self) -> GatewayJobLog:
        return GatewayJobLog(self.settings.log.jobs)

    @cached_property
    def predict(self) -> PredictEndpoint:
        return PredictEndpoint(self)

    @cached_property
    def preferred(self) -> PreferredWait:
        return PreferredWait(self.submitter, store=self.store, lifetime=self.lifetime, waiting=self.waiting)

    @cached_property
    def replays(self) -> Replays:
        return Replays(self)

    @cached_property
    def inbox(self) -> Inbox:
        return Inbox(self.store, self.registry, self.replays)

    @cached_property
    def files(self) -> FileStore:
        return FileStore(self.settings.files_dir)

    @cached_property
    def quota(self) -> FileQuota:
        settings, table = self.settings, self.settings.runs
        reserve = DiskReserve(settings.files_dir, settings.store.reserve_bytes)
        return FileQuota(FileCensus(self.files), reserve, self.lists, max_bytes=table.max_owner_bytes)

    @cached_property
    def lists(self) -> Lists:
        return Lists()

    @cached_property
    def file_uploads(self) -> FileUploads:
        return FileUploads(self.files, self.settings.runs, self.quota)

    @cached_property
    def runs(self) -> RunService:
        runs, room = AsyncRunStore(self.store), self.quota.require_room
        return RunService(runs, self.files, self.settings.runs, lists=self.lists, require_room=room)

    @cached_property
    def changes(self) -> ModelChanges:
        return ModelChanges(self.store, self.registry)

    @cached_property
    def operations(self) -> Operations:
        return Operations(self.store, self.registry)

    @cached_property
    def key_beat(self) -> KeyBeat:
        return KeyBeat(self.store, self.auth)

    @cached_property
    def audit(self) -> AuditLog:
        return AuditLog(self.store)

    @cached_property
    def health(self) -> Health:
        return Health(self.store, registry=self.registry, lifetime=self.lifetime)

    def reading(self, caller: Caller) -> Held:
        """A permit for reading a large answer, which may take long, in exchange for the permit of the predictions."""
        return self.waiting.reading(caller, instead_of=self.predictions)

    def awaiting(self, caller: Caller) -> Held:
        """A permit of the predictions, in exchange for the request's own."""
        return self.predictions.held(caller, instead_of=self.requests)

    def streaming(self, caller: Caller, *, instead_of: Shares) -> Held:
        return self.streams.held(caller, instead_of=instead_of)


def services_of(
    settings: Settings,
    *,
    store: AsyncStore,
    blobs: BlobStore,
    lifetime: Lifetime,
    metrics: GatewayMetrics,
    shares_port: bool,
) -> Services:
    parts = jobs_parts(JobsHost(settings, store, blobs))
    table = settings.gateway
    requests = Shares("requests", table.max_requests, setting="gateway.max_requests")
    return Services(
        settings,
        store,
        blobs,
        lifetime,
        tracer=next((part.tracer for part in parts.values() if part.tracer is not None), None),
        auth=KeyAuth(settings.access_keys(), rate_per_s=table.rate_per_s, burst=table.burst),
        metrics=metrics,
        registry=ModelRegistry(store, tuple(settings.model_infos()), [part.models for part in parts.values() if part.models]),
        uploads=BodyMemory(MAX_BODIES_BYTES),
        requests=requests,
        predictions=Shares("predictions", table.max_predictions, setting="gateway.max_predictions"),
        streams=Shares("streamed predictions", table.max_streams, setting="gateway.max_streams"),
        waiting=WaitingResponses(table.max_waits, requests=requests),
        words=WordReader({name: part.words for name, part in parts.items() if part.words is not None}),
        on_chosen=tuple(part.on_chosen for part in parts.values() if part.on_chosen is not None),
        shares_port=shares_port,
    )
