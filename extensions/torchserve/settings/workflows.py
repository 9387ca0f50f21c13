"""TorchServe's workflows as settings: a .war stands for a pipeline, and for a model per node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import BadArchive
from penstock.extensions.torchserve.archives.workflows import Workflow, WorkflowNode, read_workflow
from penstock.model_spec import Limits
from penstock.settings.layers import Layer

VERSION = "1.0"
# A stage with several parents gets their outputs by name; a stage with one gets its output under this name.
_BODY = "body"
# The setting of penstock, and the factor of the number.
_SETTINGS = {"batch-size": ("max_batch_size", 1), "max-batch-delay": ("max_wait_s", 0.001), "timeout-ms": ("max_run_s", 0.001)}


def workflow_layer(tree: Mapping[str, Any], *, need_files: bool = False) -> Layer:
    """The models and pipelines that the workflows of a merged tree stand for, below what users write of them.

    A file that is missing is a fault with `need_files` only: a gateway may run where the files are not, and hears of a workflow
    from its workers.
    """
    layer = Layer(Path())
    workflows = tree.get("workflows")
    store = (tree.get("torchserve") or {}).get("model_store") if isinstance(tree.get("torchserve"), dict) else None
    for name, table in workflows.items() if isinstance(workflows, dict) else ():
        source = Path(str(table.get("source") or "")) if isinstance(table, dict) else Path()
        if not source.is_file():
            if need_files:
                layer.faults.append(f"workflows.{name}.source: {source}: no such file; name a .war file")
            continue
        try:
            _put(layer, str(name), read_workflow(source), source, Path(table.get("model_store") or store or source.parent))
        except BadArchive as error:
            layer.faults.append(f"workflows.{name}: {error.message}")
    return layer


def _put(layer: Layer, name: str, workflow: Workflow, source: Path, store: Path) -> None:
    origin = f"workflow {source}"
    for node in workflow.nodes:
        where = _located(node.url, store) if node.url else str(source)
        for key, value in node_table(node, workflow.handler, where).items():
            layer.put(("models", node_model(name, node.name), key), value, origin)
    for key, value in pipeline_table(name, workflow).items():
        layer.put(("pipelines", name, key), value, origin)


def node_model(workflow: str, node: str) -> str:
    """The model that runs a node, as TorchServe calls it too."""
    return f"{workflow}__{node}"


def node_table(node: WorkflowNode, handler: str, source: str) -> dict[str, Any]:
    """The settings of the model that runs a node: an archive, or a function of the workflow itself, which lies at `source`."""
    if not node.url:
        # Most functions look at their first row alone.
        return {"source": source, "options": {"handler": f"{handler}:{node.name}"}, "max_batch_size": 1}
    said = node.said
    table: dict[str, Any] = {"source": source}
    if "min-workers" in said or "max-workers" in said:
        table["slots"] = max(said.get("min-workers", 1), said.get("max-workers", 1))
    table |= {ours: said[theirs] * factor for theirs, (ours, factor) in _SETTINGS.items() if theirs in said}
    if said.get("retry-attempts", 1) > 1:
        # A worker that is lost is tried again in any case.
        table |= {"max_attempts": max(said["retry-attempts"], Limits().max_attempts), "retry_on": ["handler_error"]}
    return table


def _located(url: str, store: Path) -> str:
    return url if "://" in url else str(store / url)


def pipeline_table(name: str, workflow: Workflow) -> dict[str, Any]:
    """The pipeline: a node with one parent gets its output as `body`, one with several a field for each."""
    return {
        "version": VERSION,
        "request_headers": ["*"],
        "stages": [_stage(name, node) for node in workflow.nodes],
    }


def _stage(name: str, node: WorkflowNode) -> dict[str, Any]:
    stage: dict[str, Any] = {"name": node.name, "model": node_model(name, node.name)}
    if len(node.parents) == 1:
        stage |= {"input": {_BODY: node.parents[0]}, "as_bytes": True}
    elif node.parents:
        stage |= {"input": {parent: parent for parent in node.parents}, "as_bytes": True}
    return stage
