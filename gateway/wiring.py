"""The parts of one gateway process and how they depend on each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI

from penstock.broker.blobs.files import BlobStore
from penstock.broker.blobs.space import DiskReserve, FileCensus
from penstock.broker.blobs.uploads import FileStore
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.runs import AsyncRunStore
from penstock.extensions.oip.gateway.endpoint import InferEndpoint
from penstock.extensions.oip.gateway.inference import Inference
from penstock.extensions.oip.gateway.repository import Repository
from penstock.extensions.openai.gateway.file_quota import FileQuota
from penstock.extensions.openai.gateway.files import OpenAIFiles
from penstock.extensions.webhooks.gateway.deliveries import Deliveries
from penstock.extensions.webhooks.gateway.routes import WebhookRoutes
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.asgi.wire import BodyMemory
from penstock.gateway.auth.audit import AuditLog
from penstock.gateway.auth.key_beat import KeyBeat
from penstock.gateway.auth.keys import KeyAuth, Shares
from penstock.gateway.auth.roles import WaitingResponses
from penstock.gateway.dashboard.router import Pages
from penstock.gateway.jobs.cancel_tagged import CancelTagged
from penstock.gateway.jobs.events.follow import JobFollower
from penstock.gateway.jobs.events.routes import JobEvents
from penstock.gateway.jobs.inbox import Inbox, InboxRoutes
from penstock.gateway.jobs.many import ManyJobs
from penstock.gateway.jobs.predict import PredictEndpoint
from penstock.gateway.jobs.reads import JobReads
from penstock.gateway.jobs.replay import Replays
from penstock.gateway.jobs.results import ResultReader
from penstock.gateway.jobs.submitting.preferred_wait import PreferredWait
from penstock.gateway.jobs.submitting.submit import SubmitEndpoint
from penstock.gateway.jobs.submitting.submit_many import SubmitMany
from penstock.gateway.jobs.submitting.submitter import GatewayJobLog, Submitter
from penstock.gateway.models.changes import ModelChanges
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.operating import operator_routers
from penstock.gateway.operations import Operations
from penstock.gateway.options import GatewayOptions, TorchServeOptions
from penstock.gateway.protocols import ForeignProtocols
from penstock.gateway.routing import RoutedApi
from penstock.gateway.runs.service import RunService
from penstock.gateway.telemetry.health import Health
from penstock.gateway.telemetry.metrics import GatewayMetrics
from penstock.gateway.telemetry.metrics_endpoint import scrape_router
from penstock.gateway.telemetry.scrape import scrape
from penstock.gateway.telemetry.tracing import Tracing
from penstock.job import Call

if TYPE_CHECKING:
    from penstock.extensions.torchserve.gateway.door import TorchServeDoor
    from penstock.extensions.torchserve.gateway.metrics import TorchServeCounts
    from penstock.extensions.torchserve.gateway.tokens import TokenFile
    from penstock.extensions.torchserve.management.building import Management


class GatewayParts:
    """Everything behind the ASGI callable. `open_requests` gives the number of requests being served."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        store: AsyncStore,
        blobs: BlobStore,
        lifetime: Lifetime,
        tracing: Tracing | None,
        open_requests: Callable[[], int],
    ) -> None:
        self._options, self._lifetime = options, lifetime
        self._store, self._blobs = store, blobs
        self.auth = KeyAuth(options.keys, rate_per_s=options.rate_per_s, burst=options.burst, tokens=_tokens(options))
        self.requests = Shares("requests", options.max_requests, setting="gateway.max_requests")
        self.predictions = Shares("predictions", options.max_predictions, setting="gateway.max_predictions")
        self.streams = Shares("streamed predictions", options.max_streams, setting="gateway.max_streams")
        self._waiting = WaitingResponses(options.max_waits, requests=self.requests)
        self._torchserve_counts = _torchserve_counts() if options.torchserve_metrics else None
        self.metrics = GatewayMetrics(open_requests=open_requests, predictions=self._torchserve_counts)
        self.registry, self.key_beat = ModelRegistry(store, options.models), KeyBeat(store, self.auth)
        self._follower, self._results = JobFollower(store, heartbeat_s=options.heartbeat_s), ResultReader(store, blobs)
        self._uploads = BodyMemory(options.max_upload_bytes)
        self._submitter = Submitter(
            options,
            store=store,
            blobs=blobs,
            registry=self.registry,
            metrics=self.metrics,
            uploads=self._uploads,
            tracing=tracing,
        )
        self._preferred = PreferredWait(self._submitter, store=store, lifetime=lifetime, waiting=self._waiting)
        self.submit = SubmitEndpoint(self._submitter, store=store, results=self._results, preferred=self._preferred)
        self.predict, self.explain = self._answer_now(Call.PREDICT), self._answer_now(Call.EXPLAIN)
        self.inference = self._inferences()
        self.infer = InferEndpoint(self.inference, options, uploads=self._uploads)
        self._replays = Replays(self._submitter, options, store=store, blobs=blobs)
        self._inbox = Inbox(store, self.registry, self._replays)
        self._file_store = FileStore(options.files_dir)
        self.files, self._runs, self._deliveries = self._file_services(self._file_store)
        self.changes = ModelChanges(store, self.registry)
        self.operations, self.audit = Operations(store, self.registry), AuditLog(store)
        self.repository = Repository(self.changes, self.registry, uploads=self._uploads, wait_s=options.sync_timeout_s)
        self.health = Health(store, registry=self.registry, lifetime=lifetime)
        self.torchserve, self.management = self._torchserve(options.torchserve)
        self.pages = self._dashboard()
        self.routers = self._routers()
        self._routed = self._route()

    @property
    def api(self) -> FastAPI:
        """What serves every path but those of the submit families."""
        return self._routed.app

    def _file_services(self, files: FileStore) -> tuple[OpenAIFiles, RunService, Deliveries]:
        options = self._options
        reserve = DiskReserve(options.files_dir, options.reserve_bytes)
        quota = FileQuota(FileCensus(files), reserve, max_files=options.max_owner_files, max_bytes=options.max_owner_bytes)
        runs = RunService(AsyncRunStore(self._store), files, options, require_room=quota.require_room)
        return OpenAIFiles(files, options, quota), runs, Deliveries(self._store, self.registry, runs)

    async def scrape_privately(self) -> bytes:
        """The metrics with what only the operator may know."""
        return await self.scrape(private=True)

    async def scrape(self, *, private: bool = False) -> bytes:
        """The metrics that the main port shows."""
        options = self._options
        shown = {"private": private, "webhooks": options.webhooks is not None}
        text = await scrape(self.metrics, self._store, self.registry, blob_dir=options.blob_dir, **shown)
        return text if self._torchserve_counts is None else text + await asyncio.to_thread(self._torchserve_text)

    def _torchserve_text(self) -> bytes:
        from penstock.extensions.torchserve.gateway.metrics import torchserve_text

        assert self._torchserve_counts is not None
        return torchserve_text(self._torchserve_counts, self.metrics.answered(), self.registry.workers, self._options.files_dir)

    def _inferences(self) -> Inference:
        return Inference(
            self.predict,
            self._options,
            submitter=self._submitter,
            registry=self.registry,
            results=self._results,
        )

    def _answer_now(self, call: Call) -> PredictEndpoint:
        return PredictEndpoint(
            self._submitter,
            self._options,
            store=self._store,
            registry=self.registry,
            results=self._results,
            metrics=self.metrics,
            lifetime=self._lifetime,
            follower=self._follower,
            reading=lambda caller: self._waiting.reading(caller, instead_of=self.predictions),
            call=call,
        )

    def _torchserve(self, own: TorchServeOptions | None) -> tuple[TorchServeDoor | None, Management | None]:
        """The routes of inference, and those of management."""
        if own is None:
            return None, None
        # Few gateways speak TorchServe's protocol, and the others do without these imports.
        from penstock.extensions.torchserve.gateway.door import TorchServeDoor
        from penstock.extensions.torchserve.gateway.parts import TorchServeParts
        from penstock.extensions.torchserve.management.building import management_of

        parts = TorchServeParts(
            self._options,
            own,
            auth=self.auth,
            audit=self.audit,
            predict=self.predict,
            submitter=self._submitter,
            store=self._store,
            registry=self.registry,
            changes=self.changes,
            results=self._results,
            metrics=self.metrics,
            uploads=self._uploads,
            health=self.health,
            requests=self.requests,
            streaming=lambda caller: self.streams.held(caller, instead_of=self.predictions),
            reading=lambda caller: self._waiting.reading(caller, instead_of=self.predictions),
        )
        return TorchServeDoor(parts), management_of(parts)

    def _dashboard(self) -> Pages | None:
        if not self._options.dashboard:
            return None
        return Pages(
            self._options,
            store=self._store,
            blobs=self._blobs,
            auth=self.auth,
            registry=self.registry,
            replays=self._replays,
            waiting=self._waiting,
            lifetime=self._lifetime,
            document=self._document,
            runs=self._runs,
            deliveries=self._deliveries,
            operations=self.operations,
            changes=self.changes,
            inbox=self._inbox,
            submitter=self._submitter,
            audit=self.audit,
        )

    def _route(self) -> RoutedApi:
        return RoutedApi(
            self._options,
            routers=self.routers,
            pages=self.pages,
            auth=self.auth,
            audit=self.audit,
            registry=self.registry,
            torchserve=self.torchserve,
        )

    def _document(self) -> dict[str, Any]:
        # The pages show it and are among its paths, so they are made before it.
        return self._routed.document()

    def _routers(self) -> list[APIRouter]:
        """Every path but those of the submit families."""
        return [
            *self._job_routers(),
            *self._foreign_protocols().routers(),
            WebhookRoutes(self._deliveries, options=self._options, uploads=self._uploads).router(),
            *self._model_routers(),
            self.health.router(),
            *([scrape_router(self.scrape)] if self._options.metrics else []),
            *([self.pages.router()] if self.pages else []),
        ]

    def _job_routers(self) -> list[APIRouter]:
        options, store, lifetime, waiting = self._options, self._store, self._lifetime, self._waiting
        many = ManyJobs(store, lifetime=lifetime, waiting=waiting, heartbeat_s=options.heartbeat_s)
        reads = JobReads(
            store,
            registry=self.registry,
            results=self._results,
            lifetime=lifetime,
            waiting=waiting,
            many=many,
            job_log=GatewayJobLog(options.log_jobs),
        )
        events = JobEvents(store, self._follower, lifetime=lifetime, waiting=waiting)
        submits = SubmitMany(
            self._submitter,
            options,
            store=store,
            uploads=self._uploads,
            charge=self.auth.admit,
        )
        cancels = CancelTagged(store, registry=self.registry, job_log=GatewayJobLog(options.log_jobs))
        # The router of many comes first, or /v1/jobs/events would be taken for a job named events.
        parts = (submits, many, cancels, reads, self._replays, events, InboxRoutes(self._inbox))
        return [part.router() for part in parts]

    def _foreign_protocols(self) -> ForeignProtocols:
        return ForeignProtocols(
            self._options,
            store=self._store,
            registry=self.registry,
            submitter=self._submitter,
            predict=self.predict,
            preferred=self._preferred,
            inference=self.inference,
            repository=self.repository,
            results=self._results,
            follower=self._follower,
            runs=self._runs,
            files=self._file_store,
            openai_files=self.files,
            uploads=self._uploads,
            lifetime=self._lifetime,
            waiting=self._waiting,
            requests=self.requests,
            predictions=self.predictions,
            streams=self.streams,
        )

    def _model_routers(self) -> list[APIRouter]:
        return operator_routers(
            self._options,
            store=self._store,
            registry=self.registry,
            changes=self.changes,
            operations=self.operations,
            key_beat=self.key_beat,
            auth=self.auth,
            uploads=self._uploads,
        )


def _torchserve_counts() -> TorchServeCounts:
    # Few gateways are asked for these names.
    from penstock.extensions.torchserve.gateway.metrics import TorchServeCounts

    return TorchServeCounts()


def _tokens(options: GatewayOptions) -> TokenFile | None:
    """Raises `ConfigError` for a file that cannot be used."""
    own = options.torchserve
    if own is None or own.key_path is None:
        return None
    from penstock.extensions.torchserve.gateway.tokens import TokenFile

    return TokenFile(own.key_path, lifetime_s=own.token_lifetime_s, is_alone=not options.keys).open()
