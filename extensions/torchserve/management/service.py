"""TorchServe's management as plain functions: done with our own changes of models, and answered in TorchServe's words.

The HTTP routes and the gRPC service both call these.
"""

# D103: docs/design/protocols.md
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from penstock.extensions.torchserve.gateway.errors import TorchServeError, model_not_found, no_method, version_not_found
from penstock.extensions.torchserve.gateway.replies import pretty
from penstock.extensions.torchserve.management.allowed_urls import is_remote
from penstock.extensions.torchserve.management.describe import VersionFacts, describe_version, listed, version_facts
from penstock.extensions.torchserve.management.model_store import ModelStore
from penstock.extensions.torchserve.management.parameters import (
    RegisterWish,
    batch_policy,
    is_customized,
    page_of,
    register_wish,
    scale_wish,
)
from penstock.extensions.torchserve.management.registering import Registration, conflict, not_started, registration
from penstock.gateway.models.queues import stats_of_model, unfinished_of
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.models.slots import SlotsState
from penstock.gateway.models.waits import await_gone, await_slots
from penstock.gateway.options import TorchServeOptions
from penstock.gateway.services import Services

log = structlog.get_logger(__name__)

Given = Mapping[str, Any]
# Runs a version's own description on a worker and hands back what it says.
Describe = Callable[[ModelEntry, VersionEntry], Awaitable[Any]]
ALL_VERSIONS = "all"
UPDATING = "Processing worker updates..."
SCALING = "Workers scaling in progress..."
_LOOK_S = 0.1
# How long an unregistration waits for the jobs that it leaves to be run, as in TorchServe.
UNREGISTER_S = 120.0


@dataclass(frozen=True, slots=True)
class ManagementReply:
    status: int
    value: Any

    @property
    def text(self) -> str:
        return pretty(self.value).decode()


class ModelManagement:
    """Every function raises `TorchServeError` for what it refuses, and our own errors for a store that cannot be reached.

    `sources`: the sources of the models that this gateway's settings name, by model and version.
    """

    def __init__(self, services: Services, own: TorchServeOptions, models: ModelStore) -> None:
        self._options = own
        self._store = services.store
        self._registry = services.registry
        self._changes = services.changes
        self._models = models
        self._sources = own.sources

    async def list_models(self, given: Given) -> ManagementReply:
        await self._registry.refresh()
        urls = {name: self._facts(entry, entry.default.name).url for name, entry in self._registry.models.items()}
        return ManagementReply(200, listed(urls, page_of(given)))

    async def describe(self, model: str, version: str, given: Given, *, run: Describe) -> ManagementReply:
        """A list, as there: of the default version, of the named one, or of `all`."""
        entry = await self._entry(model)
        names = list(entry.versions) if version == ALL_VERSIONS else [self._version(entry, version).name]
        stats = await stats_of_model(self._store, entry)
        found = []
        for name in names:
            view = describe_version(self._facts(entry, name), self._registry.workers, stats)
            if is_customized(given):
                view["customizedMetadata"] = await self._customized(entry, name, run)
            found.append(view)
        return ManagementReply(200, found)

    async def readiness(self, model: str) -> ManagementReply:
        """KServe's: ready is what a worker has loaded."""
        entry = await self._entry(model)
        return ManagementReply(200, {"name": entry.name, "ready": entry.default.capacity.ready_slots > 0})

    async def register(self, given: Given) -> ManagementReply:
        """Have workers load a version; with `synchronous`, answer once they have. Nothing is registered if it fails."""
        self._require_api()
        wish = register_wish(given)
        found = await self._registration(wish)
        log.info("model_registering", model=found.model, version=found.version, source=found.table["source"])
        await self._load(found)
        if not found.workers:
            return _status(200, found.done)
        if not wish.synchronous:
            return _status(202, UPDATING)
        slots = await await_slots(self._registry, found.model, found.version, timeout_s=found.startup_s)
        if slots.state is SlotsState.FAILED:
            raise await self._taken_back(found, slots.reasons)
        return _status(200, found.done) if slots.state is SlotsState.REACHED else _status(206, SCALING)

    async def scale(self, model: str, version: str, given: Given) -> ManagementReply:
        wish = scale_wish(given)
        entry = await self._entry(model)
        name = self._version(entry, version).name
        facts = self._facts(entry, name)
        if policy := batch_policy(wish.batching):
            await self._changes.batch(entry.name, name, policy)
        # What lies within the bounds stays, as there.
        workers = min(max(facts.workers, wish.min_workers), wish.max_workers)
        await self._changes.scale(entry.name, workers, version=name)
        if not wish.synchronous:
            return _status(202, UPDATING)
        slots = await await_slots(self._registry, entry.name, name, timeout_s=facts.limits.load_timeout_s)
        if slots.state is SlotsState.FAILED:
            raise not_started(entry.name, name, slots.reasons)
        of_version = f", version: {version}" if version else ""
        done = f"Workers scaled to {workers} for model: {entry.name}{of_version}"
        return _status(200, done) if slots.state is SlotsState.REACHED else _status(206, SCALING)

    async def set_default(self, model: str, version: str) -> ManagementReply:
        entry = await self._entry(model)
        if version not in entry.versions:
            message = f"Model version {version} does not exist for model {model}"
            raise TorchServeError(404, "ModelVersionNotFoundException", message)
        if entry.default.name != version:
            await self._changes.switch_version(entry.name, version)
        return _status(200, f'Default version successfully updated for model "{model}" to "{version}"')

    async def unregister(self, model: str, version: str) -> ManagementReply:
        """The version gets no new jobs; those that wait are still run, and this waits for their end."""
        self._require_api()
        entry = await self._entry(model)
        found = self._version(entry, version)
        is_default = found.name == entry.default.name
        if is_default and len(entry.versions) > 1:
            raise TorchServeError(403, "InvalidModelVersionException", f"Cannot remove default version for model {model}")
        if is_default:
            await self._changes.unload_model(entry.name)
        else:
            await self._changes.unload_version(entry.name, found.name)
        log.info("model_unregistered", model=entry.name, version=found.name)
        await self._drained(entry.name, found.name)
        return _status(200, f'Model "{model}" unregistered')

    def _require_api(self) -> None:
        if not self._options.model_api:
            raise no_method()

    async def _entry(self, model: str) -> ModelEntry:
        # What another gateway has just changed counts here too.
        await self._registry.refresh()
        entry = self._registry.models.get(model)
        if entry is None:
            raise model_not_found(model)
        return entry

    def _version(self, entry: ModelEntry, version: str) -> VersionEntry:
        found = entry.versions.get(version) if version else entry.default
        if found is None:
            raise version_not_found(entry.name, version)
        return found

    def _facts(self, entry: ModelEntry, version: str) -> VersionFacts:
        source = self._sources.get((entry.name, version), "")
        return version_facts(entry, version, self._registry.rollout(entry.name), self._registry.workers, source)

    async def _customized(self, entry: ModelEntry, version: str, run: Describe) -> Any:
        found = entry.versions[version]
        if not found.capacity.ready_slots:
            raise TorchServeError(
                503,
                "ServiceUnavailableException",
                f'Model "{entry.name}" has no worker to serve describe request. Please use scale workers API to add workers.',
            )
        return await run(entry, found)

    async def _registration(self, wish: RegisterWish) -> Registration:
        source = await self._models.model_source_of(wish.url)
        archive = await self._models.contents(source)
        return registration(wish, source, archive, self._options, is_remote=is_remote(wish.url))

    async def _load(self, found: Registration) -> None:
        """Raises `TorchServeError`, 409, if there is such a version; `Conflict` if one that was unregistered does not end in
        time, or if no worker could load it.
        """
        await self._registry.refresh()
        entry = self._registry.models.get(found.model)
        if entry is not None and found.version in entry.versions:
            raise conflict(found)
        # Of a version of this name that was unregistered nothing may be left.
        await await_gone(self._changes, found.model, found.version, timeout_s=found.startup_s)
        await self._changes.load_version(found.model, {**found.table, "version": found.version})

    async def _taken_back(self, found: Registration, reasons: list[str]) -> TorchServeError:
        """The refusal of a registration whose workers cannot start; nothing of it is left."""
        entry = await self._entry(found.model)
        if len(entry.versions) > 1 and entry.default.name != found.version:
            await self._changes.unload_version(found.model, found.version)
        else:
            await self._changes.unload_model(found.model)
        log.warning("model_not_registered", model=found.model, version=found.version, reasons=reasons)
        return not_started(found.model, found.version, reasons)

    async def _drained(self, model: str, version: str) -> None:
        """Raises `TorchServeError`, 408, if jobs of the version are left after a while. They are run all the same."""
        until = time.monotonic() + UNREGISTER_S
        while True:
            left = await unfinished_of(self._store, self._registry, model, version)
            if not (left.waiting or left.running):
                return
            if time.monotonic() >= until:
                raise TorchServeError(408, "RequestTimeoutException", f"Timed out while cleaning resources: {model}")
            await asyncio.sleep(_LOOK_S)


def _status(status: int, text: str) -> ManagementReply:
    return ManagementReply(status, {"status": text})
