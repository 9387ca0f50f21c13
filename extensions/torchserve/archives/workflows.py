"""TorchServe's workflows: a .war file that says which models and functions follow one another, and how each is run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import BadArchive
from penstock.extensions.torchserve.archives.contents import members_of_archive
from penstock.extensions.torchserve.archives.kinds import WORKFLOW_MANIFEST, archive_stem, handler_module
from penstock.extensions.torchserve.archives.members import ArchiveLimits
from penstock.extensions.torchserve.archives.model_config import read_yaml

_MAX_BYTES = 1 << 20
_HINT = "pack it again with torch-workflow-archiver"
# Settings of a node, and of all nodes where they stand beside the models; and the least that each may be.
_SETTINGS = {"min-workers": 1, "max-workers": 1, "batch-size": 1, "max-batch-delay": 0, "retry-attempts": 1, "timeout-ms": 1}
# Names that stages may have: those of our models, without the dot, which stands between a stage and a field there.
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """A model of the workflow or, with an empty `url`, a function of its handler. `said`: the settings that the specification
    has for it, as TorchServe names them, in milliseconds. `parents`: the nodes before it, in the order of the specification.
    """

    name: str
    url: str = ""
    said: dict[str, int] = field(default_factory=dict)
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workflow:
    """`handler`: the file with the functions, empty if there is none. `dag`: node to children, as the specification has it."""

    name: str
    handler: str
    nodes: tuple[WorkflowNode, ...]
    dag: dict[str, tuple[str, ...]]


def read_workflow(path: Path) -> Workflow:
    """Raises `BadArchive` with every fault; no code of the workflow is run."""
    _, manifests = members_of_archive(path, ArchiveLimits(), lambda name: name == WORKFLOW_MANIFEST, _MAX_BYTES)
    manifest = _manifest(manifests.get(WORKFLOW_MANIFEST), str(path))
    spec_file, handler = str(manifest.get("specFile") or ""), str(manifest.get("handler") or "")
    files, specs = members_of_archive(path, ArchiveLimits(), lambda name: name == spec_file, _MAX_BYTES)
    if spec_file not in specs:
        raise BadArchive(f"{path}: its manifest names the specFile {spec_file!r}, which is not in it", hint=_HINT)
    spec = read_yaml(specs[spec_file], f"{path}: {spec_file}")
    name = str(manifest.get("workflowName") or "") or archive_stem(path)
    workflow, faults = _workflow(name, handler, spec if isinstance(spec, dict) else {})
    functions = [node.name for node in workflow.nodes if not node.url]
    if functions and f"{handler_module(handler)[0]}.py" not in files:
        faults.append(f"{', '.join(functions)} must be functions of its handler, and {handler or 'a handler'!r} is not in it")
    if faults:
        raise BadArchive(f"{path}: {spec_file} cannot be used: {'; '.join(faults)}", hint="correct the specification")
    return workflow


def _manifest(data: bytes | None, archive: str) -> dict[str, Any]:
    try:
        whole = json.loads((data or b"").decode("utf-8-sig"))
    except (ValueError, RecursionError):
        whole = None
    workflow = whole.get("workflow") if isinstance(whole, dict) else None
    if not isinstance(workflow, dict):
        raise BadArchive(f"{archive}: {WORKFLOW_MANIFEST} is missing or has no object `workflow`", hint=_HINT)
    return workflow


def _workflow(name: str, handler: str, spec: Mapping[str, Any]) -> tuple[Workflow, list[str]]:
    models, faults = spec.get("models"), list[str]()
    models = models if isinstance(models, dict) else {}
    dag = dict(_children(spec.get("dag"), faults))
    names = list(dict.fromkeys([*dag, *(child for children in dag.values() for child in children)]))
    own = {str(node): table for node, table in models.items() if isinstance(table, dict)}
    names = names or list(own)
    faults += [f"models.{node} is in no line of the dag" for node in own if node not in names]
    faults += [f"models.{node} names no url" for node, table in own.items() if not isinstance(table.get("url"), str)]
    faults += [f"{node!r} is no name of a node: letters, digits, _ and -" for node in names if not set(node) <= _NAME_CHARS]
    shared = {key: value for key, value in models.items() if not isinstance(value, dict)}
    nodes = tuple(_node(node, own.get(node), shared, dag, faults) for node in names)
    if not nodes:
        faults.append("it has neither a dag nor models")
    return Workflow(name, handler, nodes, dag), faults


def _children(dag: Any, faults: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node, children in dag.items() if isinstance(dag, dict) else ():
        listed = [children] if isinstance(children, str) else children or []
        if not isinstance(listed, list):
            faults.append(f"dag.{node} is no list of nodes")
            continue
        yield str(node), tuple(map(str, listed))


def _node(
    name: str, own: Mapping[str, Any] | None, shared: Mapping[str, Any], dag: Mapping[str, tuple[str, ...]], faults: list[str]
) -> WorkflowNode:
    said: dict[str, int] = {}
    for key, value in {**shared, **own}.items() if own is not None else ():
        if key == "url":
            continue
        if key not in _SETTINGS:
            faults.append(f"models.{name}: {key!r} is no setting of a workflow; these are {', '.join(_SETTINGS)}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < _SETTINGS[key]:
            faults.append(f"models.{name}: {key} is {value!r}, not a whole number of {_SETTINGS[key]} or more")
        else:
            said[key] = value
    parents = tuple(node for node, children in dag.items() if name in children)
    return WorkflowNode(name, str(own["url"]) if own and own.get("url") else "", said, parents)
