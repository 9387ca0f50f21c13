"""TorchServe's management as plain functions: done with our own changes of models, and answered in TorchServe's words.

The HTTP routes and the gRPC service both call these.
"""

# D103: docs/design/protocols.md
from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from penstock.extensions.torchserve.gateway.errors import TorchServeError, model_not_found, no_method, version_not_found
from penstock.extensions.torchserve.gateway.replies import pretty
from penstock.extensions.torchserve.management.describe import VersionFacts, describe_version, listed, version_facts
from penstock.extensions.torchserve.management.download import is_remote
from penstock.extensions.torchserve.management.model_store import ModelStore
from penstock.extensions.torchserve.management.registering import (
    RegisterWish,
    Registration,
    conflict,
    is_customized,
    not_started,
    page_of,
    register_wish,
    registration,
    scale_wish,
)
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.gateway.asgi.connection import ClientConnection
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.predict import answer_deadline
from penstock.gateway.jobs.submitting.draft import SubmitRequest
from penstock.gateway.jobs.submitting.submit_options import NO_OPTIONS
from penstock.gateway.models.queues import stats_of_model, unfinished_of
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.models.slots import SlotsState
from penstock.gateway.models.waits import await_gone, await_slots
from penstock.gateway.services import Services
from penstock.inputs.request import packed
from penstock.job import Payload

log = structlog.get_logger(__name__)

Given = Mapping[str, Any]
ALL_VERSIONS = "all"
UPDATING = "Processing worker updates..."
SCALING = "Workers scaling in progress..."
_LOOK_S = 0.1
# How long an unregistration waits for the jobs that it leaves to be run, as in TorchServe.
UNREGISTER_S = 120.0
# The header by which TorchServe's handlers recognise a request for a description.
_DESCRIBE = {"describe": "True"}


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

    def __init__(self, services: Services, own: TorchServeSettings, models: ModelStore) -> None:
        self._own = own
        self._store = services.store
        self._registry = services.registry
        self._changes = services.changes
        self._models = models
        self._sources = {(spec.name, spec.version): spec.source for spec in services.settings.specs()}
        self._predict = services.predict
        self._results = services.results
        self._describe_s = services.settings.gateway.sync_timeout_s

    async def list_models(self, given: Given) -> ManagementReply:
        await self._registry.refresh()
        urls = {name: self._facts(entry, entry.default.name).url for name, entry in self._registry.models.items()}
        return ManagementReply(200, listed(urls, page_of(given)))

    async def describe(
        self, model: str, version: str, given: Given, caller: Caller, connection: ClientConnection
    ) -> ManagementReply:
        """A list, as in TorchServe: of the default version, the named one, or `all`. If the model's own description is wanted,
        this raises as a prediction does, and `ClientGone` once the caller hangs up.
        """
        entry = await self._entry(model)
        names = list(entry.versions) if version == ALL_VERSIONS else [self._version(entry, version).name]
        stats = await stats_of_model(self._store, entry)
        views = []
        for name in names:
            view = describe_version(self._facts(entry, name), self._registry.workers, stats)
            if is_customized(given):
                view["customizedMetadata"] = await self._customized(entry, entry.versions[name], caller, connection)
            views.append(view)
        return ManagementReply(200, views)

    async def readiness(self, model: str) -> ManagementReply:
        """KServe's readiness: a model is ready once a worker has loaded it."""
        entry = await self._entry(model)
        return ManagementReply(200, {"name": entry.name, "ready": entry.default.capacity.ready_slots > 0})

    async def register(self, given: Given) -> ManagementReply:
        """Have workers load a version; with `synchronous`, answer once they have. Nothing is registered if it fails."""
        self._require_api()
        wish = register_wish(given)
        new = await self._registration(wish)
        log.info("model_registering", model=new.model, version=new.version, source=new.table["source"])
        await self._load(new)
        if not new.workers:
            return _status(200, new.done)
        if not wish.synchronous:
            return _status(202, UPDATING)
        slots = await await_slots(self._registry, new.model, new.version, timeout_s=new.startup_s)
        if slots.state is SlotsState.FAILED:
            raise await self._taken_back(new, slots.reasons)
        return _status(200, new.done) if slots.state is SlotsState.REACHED else _status(206, SCALING)

    async def scale(self, model: str, version: str, given: Given) -> ManagementReply:
        wish = scale_wish(given)
        entry = await self._entry(model)
        name = self._version(entry, version).name
        facts = self._facts(entry, name)
        if wish.policy:
            await self._changes.batch(entry.name, name, wish.policy)
        # A number within the bounds stays, as in TorchServe.
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
        named = self._version(entry, version)
        is_default = named.name == entry.default.name
        if is_default and len(entry.versions) > 1:
            raise TorchServeError(403, "InvalidModelVersionException", f"Cannot remove default version for model {model}")
        if is_default:
            await self._changes.unload_model(entry.name)
        else:
            await self._changes.unload_version(entry.name, named.name)
        log.info("model_unregistered", model=entry.name, version=named.name)
        await self._drained(entry.name, named.name)
        return _status(200, f'Model "{model}" unregistered')

    def _require_api(self) -> None:
        if not self._own.model_api:
            raise no_method()

    async def _entry(self, model: str) -> ModelEntry:
        # Another gateway may just have changed it.
        await self._registry.refresh()
        entry = self._registry.models.get(model)
        if entry is None:
            raise model_not_found(model)
        return entry

    def _version(self, entry: ModelEntry, version: str) -> VersionEntry:
        named = entry.versions.get(version) if version else entry.default
        if named is None:
            raise version_not_found(entry.name, version)
        return named

    def _facts(self, entry: ModelEntry, version: str) -> VersionFacts:
        source = self._sources.get((entry.name, version), "")
        return version_facts(entry, version, self._registry.rollout(entry.name), self._registry.workers, source)

    async def _customized(self, entry: ModelEntry, version: VersionEntry, caller: Caller, connection: ClientConnection) -> Any:
        """Asks the handler of an archive; other models announced theirs when they were loaded."""
        if not version.capacity.ready_slots:
            raise TorchServeError(
                503,
                "ServiceUnavailableException",
                f'Model "{entry.name}" has no worker to serve describe request. Please use scale workers API to add workers.',
            )
        if not version.takes_raw:
            return _known(version)
        payload = packed(Payload("application/octet-stream", b""), headers=_DESCRIBE, query={})
        request = SubmitRequest(entry, version, payload, NO_OPTIONS, caller)
        end = await self._predict.end_of(request, connection, answer_deadline(request, self._describe_s))
        output = (await self._results.output(end)).data
        try:
            return orjson.loads(output)
        except orjson.JSONDecodeError:
            return output.decode("utf-8", "replace")

    async def _registration(self, wish: RegisterWish) -> Registration:
        source = await self._models.model_source_of(wish.url)
        archive = await self._models.contents(source)
        return registration(wish, source, archive, self._own, is_remote=is_remote(wish.url))

    async def _load(self, new: Registration) -> None:
        """Raises `TorchServeError`, 409, if there is such a version; `Conflict` if one that was unregistered does not end in
        time, or if no worker could load it.
        """
        await self._registry.refresh()
        entry = self._registry.models.get(new.model)
        if entry is not None and new.version in entry.versions:
            raise conflict(new)
        # An unregistered version of this name must be gone first.
        await await_gone(self._changes, new.model, new.version, timeout_s=new.startup_s)
        await self._changes.load_version(new.model, {**new.table, "version": new.version})

    async def _taken_back(self, new: Registration, reasons: list[str]) -> TorchServeError:
        """The refusal of a registration whose workers cannot start; nothing of it is left."""
        entry = await self._entry(new.model)
        if len(entry.versions) > 1 and entry.default.name != new.version:
            await self._changes.unload_version(new.model, new.version)
        else:
            await self._changes.unload_model(new.model)
        log.warning("model_not_registered", model=new.model, version=new.version, reasons=reasons)
        return not_started(new.model, new.version, reasons)

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


def _known(version: VersionEntry) -> dict[str, Any]:
    info = version.info
    if info is None:
        return {}
    texts = {"description": info.description, "inputSchema": info.input_schema, "outputSchema": info.output_schema}
    return {name: value for name, value in texts.items() if value}


def _status(status: int, text: str) -> ManagementReply:
    return ManagementReply(status, {"status": text})
