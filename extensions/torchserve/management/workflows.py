"""TorchServe's workflows at run time: registered as a pipeline and a model per node, described, listed, unregistered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from penstock.errors import BadArchive, PenstockError
from penstock.extensions.pipelines.gateway.models import pipelines_of
from penstock.extensions.pipelines.spec import announced_stages
from penstock.extensions.torchserve.archives.workflows import Workflow, read_workflow
from penstock.extensions.torchserve.gateway.errors import TorchServeError, bad_request, no_method
from penstock.extensions.torchserve.management.model_store import ModelStore
from penstock.extensions.torchserve.management.registering import page_of
from penstock.extensions.torchserve.management.service import ManagementReply
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.extensions.torchserve.settings.workflows import VERSION, node_model, node_table, pipeline_table
from penstock.gateway.models.changes import ModelChanges
from penstock.gateway.models.registry import ModelEntry, ModelRegistry
from penstock.gateway.models.slots import SlotsState
from penstock.gateway.models.waits import await_gone, await_slots
from penstock.job import MODEL_NAME

log = structlog.get_logger(__name__)


class WorkflowManagement:
    """Every function raises `TorchServeError` for what it refuses, and our own errors for a store that cannot be reached."""

    def __init__(self, own: TorchServeSettings, *, registry: ModelRegistry, changes: ModelChanges, models: ModelStore) -> None:
        self._own = own
        self._registry = registry
        self._changes = changes
        self._models = models

    async def list_workflows(self, given: Mapping[str, Any]) -> ManagementReply:
        await self._registry.refresh()
        names, page = pipelines_of(self._registry), page_of(given)
        shown = names[page.start : page.start + page.limit]
        more = {"nextPageToken": str(page.start + page.limit)} if len(names) > page.start + page.limit else {}
        rows = [{"workflowName": name, "workflowUrl": self._url(name)} for name in shown]
        return ManagementReply(200, {**more, "workflows": rows})

    async def describe(self, name: str) -> ManagementReply:
        entry = await self._entry(name)
        stages = announced_stages(entry.default.info)
        children = {stage.name: [one.name for one in stages if stage.name in _before(one)] for stage in stages}
        dag = ", ".join(f"{node}=[{', '.join(after)}]" for node, after in children.items() if after)
        first = self._registry.models.get(stages[0].model) if stages else None
        policy = first.info.policy if first is not None else entry.info.policy
        view = {
            "workflowName": name,
            "workflowUrl": self._url(name),
            "minWorkers": 1,
            "maxWorkers": 1,
            "batchSize": policy.max_batch_size,
            "maxBatchDelay": round(policy.max_wait_s * 1_000),
            "workflowDag": f"{{{dag}}}",
        }
        return ManagementReply(200, [view])

    async def register(self, given: Mapping[str, Any]) -> ManagementReply:
        """Have workers load every node, and then the pipeline; answers once all can serve. Nothing is left if one cannot."""
        if not self._own.model_api:
            raise no_method()
        url = str(given.get("url") or "")
        if not url:
            raise bad_request("Parameter url is required.")
        try:
            source = await self._models.source_of(url)
        except TorchServeError as error:
            if error.status != 404:
                raise
            message = f"Workflow not found in workflow store: {url[:200]}"
            raise TorchServeError(404, "WorkflowNotFoundException", message) from error
        workflow = await asyncio.to_thread(_read, self._models.path_of(source), source)
        name = str(given.get("workflow_name") or "") or workflow.name
        if not MODEL_NAME.fullmatch(name):
            must = "must have 1 to 64 letters, digits, '_', '.' or '-', and may not be 'registry'."
            raise bad_request(f"workflow_name {name[:80]!r} {must}")
        await self._registry.refresh()
        if name in self._registry.models:
            raise TorchServeError(409, "ConflictStatusException", f"Workflow {name} is already registered.")
        log.info("workflow_registering", workflow=name, source=source, nodes=len(workflow.nodes))
        if faults := await self._load(name, workflow, source):
            await self._remove(name, [node.name for node in workflow.nodes])
            message = f"Workflow {name} has failed to register. Failures: [{', '.join(faults)}]"
            raise TorchServeError(500, "WorkflowException", message)
        return _status(f"Workflow {name} has been registered and scaled successfully.")

    async def unregister(self, name: str) -> ManagementReply:
        """It gets no new jobs; those that wait are still run by its nodes, whose models go once nothing waits for them."""
        if not self._own.model_api:
            raise no_method()
        entry = await self._entry(name)
        await self._remove(name, [stage.name for stage in announced_stages(entry.default.info)])
        return _status(f'Workflow "{name}" unregistered')

    async def _load(self, name: str, workflow: Workflow, source: str) -> list[str]:
        """One sentence per node that cannot be loaded."""
        timeout_s = self._own.default_startup_timeout_s
        tables = {}
        for node in workflow.nodes:
            where = await self._models.source_of(node.url) if node.url else source
            table = node_table(node, workflow.handler, where)
            tables[node_model(name, node.name)] = {"slots": 1, "load_timeout_s": timeout_s, **table}
        tables[name] = {**pipeline_table(name, workflow), "registered_from": source}
        faults: list[str] = []
        for model, table in tables.items():
            if not faults or model != name:
                faults += await self._loaded(model, table, timeout_s)
        waited = [self._awaited(model, timeout_s) for model in tables] if not faults else []
        return faults + [fault for fault in await asyncio.gather(*waited) if fault]

    async def _loaded(self, model: str, table: dict[str, Any], timeout_s: float) -> list[str]:
        try:
            # An unregistered node of this name must be gone first.
            await await_gone(self._changes, model, VERSION, timeout_s=timeout_s)
            await self._changes.load_version(model, {**table, "version": VERSION})
        except PenstockError as error:
            return [_failed(model, error)]
        return []

    async def _awaited(self, model: str, timeout_s: float) -> str:
        slots = await await_slots(self._registry, model, VERSION, timeout_s=timeout_s)
        if slots.state is SlotsState.REACHED:
            return ""
        why = "; ".join(slots.reasons[:1]) or f"Failed to start workers for model {model} version: {VERSION}"
        return f"Workflow Node {model} failed to register. Details: {why}"

    async def _remove(self, name: str, nodes: Sequence[str]) -> None:
        """The pipeline goes first, so that none of its jobs begins without models."""
        await self._registry.refresh()
        for model in (name, *(node_model(name, node) for node in nodes)):
            if model in self._registry.models:
                await self._changes.unload_model(model)
        log.info("workflow_unregistered", workflow=name)

    async def _entry(self, name: str) -> ModelEntry:
        await self._registry.refresh()
        entry = self._registry.models.get(name)
        if entry is None or not announced_stages(entry.default.info):
            raise TorchServeError(404, "WorkflowNotFoundException", f"Workflow not found: {name}")
        return entry

    def _url(self, name: str) -> str:
        added = self._registry.rollout(name).added
        return next((str(table["registered_from"]) for table in added.values() if table.get("registered_from")), f"{name}.war")


def _read(path: Path, shown: str) -> Workflow:
    try:
        return read_workflow(path)
    except BadArchive as error:
        reason = error.message.replace(str(path), Path(shown).name)
        raise TorchServeError(400, "InvalidWorkflowException", f"The workflow cannot be used: {reason}") from error


def _before(stage: Any) -> tuple[str, ...]:
    return tuple(stage.input.values()) if isinstance(stage.input, dict) else stage.after


def _failed(model: str, error: PenstockError) -> str:
    return f"Workflow Node {model} failed to register. Details: {error.message}"


def _status(text: str) -> ManagementReply:
    return ManagementReply(200, {"status": text})
