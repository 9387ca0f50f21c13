"""The parts of one gateway process and how they depend on each other."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, FastAPI

from penstock.broker.store.library import lua_extensions
from penstock.gateway.auth.own_routes import OWN
from penstock.gateway.auth.rules import joined
from penstock.gateway.dashboard.router import Pages
from penstock.gateway.extending import DifferingWorkers, parts_of
from penstock.gateway.jobs.cancel_tagged import CancelTagged
from penstock.gateway.jobs.events.routes import JobEvents
from penstock.gateway.jobs.inbox import InboxRoutes
from penstock.gateway.jobs.many import ManyJobs
from penstock.gateway.jobs.predict import PredictEndpoint
from penstock.gateway.jobs.reads import JobReads
from penstock.gateway.jobs.submitting.submit import SubmitEndpoint
from penstock.gateway.jobs.submitting.submit_many import SubmitMany
from penstock.gateway.operating import operator_routers
from penstock.gateway.routing import RoutedApi
from penstock.gateway.runs.routes import RunRoutes
from penstock.gateway.services import Services
from penstock.gateway.telemetry.metrics_endpoint import scrape_router
from penstock.gateway.telemetry.scrape import scrape
from penstock.job import Call


class GatewayParts:
    """Everything behind the ASGI callable: our own routes, and those of extensions."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.submit = SubmitEndpoint(services)
        self.predict, self.explain = services.predict, PredictEndpoint(services, call=Call.EXPLAIN)
        # Before the pages and the routes: an extension may decide who is admitted.
        self.extensions = parts_of(services)
        services.registry.watchers.append(DifferingWorkers(one.name for one in lua_extensions()).look)
        self.rules = joined([OWN, *(part.rules for part in self.extensions)])
        self.pages = self._dashboard()
        self.routers = self._routers()
        self._routed = RoutedApi(services, self.rules, self.routers, self.pages, self.extensions)

    @property
    def api(self) -> FastAPI:
        """The application for every path except the submits."""
        return self._routed.app

    async def scrape_privately(self) -> bytes:
        """The metrics, including those that only the operator may see."""
        return await self.scrape(private=True)

    async def scrape(self, *, private: bool = False) -> bytes:
        """The metrics that the main port shows."""
        services, settings = self.services, self.services.settings
        own = scrape(services.metrics, services.store, services.registry, private=private, blob_dir=settings.blob_disk)
        more = [part.scrape() for part in self.extensions if part.scrape is not None]
        return b"".join(await asyncio.gather(own, *more))

    def _dashboard(self) -> Pages | None:
        services = self.services
        if not services.settings.has_dashboard:
            return None
        parts = [part.dashboard for part in self.extensions if part.dashboard is not None]
        return Pages(services, parts, document=self.document)

    def document(self) -> dict[str, Any]:
        """The OpenAPI document. Its paths include the pages, which show it, so they are made first."""
        return self._routed.document()

    def _routers(self) -> list[APIRouter]:
        """Every path except the submits."""
        services = self.services
        return [
            *self._job_routers(),
            *(router for part in self.extensions for router in part.routers),
            RunRoutes(services, [part.run for part in self.extensions if part.run is not None]).router(),
            *operator_routers(services, self.extensions),
            services.health.router(),
            *([scrape_router(self.scrape)] if services.shows_metrics else []),
            *([self.pages.router()] if self.pages else []),
        ]

    def _job_routers(self) -> list[APIRouter]:
        services, store, lifetime, waiting = self.services, self.services.store, self.services.lifetime, self.services.waiting
        many = ManyJobs(store, lifetime=lifetime, waiting=waiting, heartbeat_s=services.settings.gateway.heartbeat_s)
        events = JobEvents(store, services.follower, lifetime=lifetime, waiting=waiting)
        cancels = CancelTagged(store, registry=services.registry, job_log=services.job_log)
        timelines = [part.timeline for part in self.extensions if part.timeline is not None]
        reads, inbox = JobReads(services, many, timelines), InboxRoutes(services.inbox)
        # The router of many jobs comes first, or /v1/jobs/events would match as a job named events.
        parts = (SubmitMany(services), many, cancels, reads, services.replays, events, inbox)
        return [part.router() for part in parts]
