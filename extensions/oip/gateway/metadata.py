"""What the protocol says of a model: its tensors, made of its JSON Schemas, and its state in the repository. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.models.slots import STILL_LOADING, why_unserved
from penstock.inputs.form import choices_of, form_fields
from penstock.inputs.tensors import WHOLE_TENSOR
from penstock.model_spec import WorkerInfo
from penstock.tensors.tensor import DATATYPE_KEY, TEXTS

PLATFORM = "penstock"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "schedule_policy"]
_DATATYPES = {"boolean": "BOOL", "integer": "INT64", "number": "FP64", "string": TEXTS}
_MOST_DIMENSIONS = 16
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TensorPort:
    """One tensor of a model; -1 in `shape` is a free dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def view(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


def input_ports(version: VersionEntry) -> list[TensorPort]:
    """Empty where the model does not say what it takes."""
    if version.info is None:
        return []
    if not version.info.input_schema:
        # Bytes of any type are one element; a model without annotations takes any tensors.
        is_file = version.accepts and "*/*" not in version.accepts and "application/json" not in version.accepts
        return [TensorPort(WHOLE_TENSOR, TEXTS, (1,))] if is_file else []
    return ports_of(version.info.input_schema, WHOLE_TENSOR)


def output_ports(version: VersionEntry) -> list[TensorPort]:
    schema = version.info.output_schema if version.info else None
    return ports_of(schema, "output") if schema else []


def ports_of(schema: Schema, whole: str) -> list[TensorPort]:
    """A port per field of an object, or one named `whole`."""
    fields = form_fields(schema)
    if fields is None:
        return [_port(whole, schema, schema)]
    return [_port(name, fields.root, own) for name, own in fields.named.items()]


def _port(name: str, root: Schema, schema: Any) -> TensorPort:
    shape: list[int] = []
    choice = _chosen(root, schema)
    while choice.get("type") == "array" and len(shape) < _MOST_DIMENSIONS:
        low, high = choice.get("minItems", 0), choice.get("maxItems")
        shape.append(low if low == high else -1)
        choice = _chosen(root, choice.get("items", {}))
    datatype = choice.get(DATATYPE_KEY) or _DATATYPES.get(str(choice.get("type")))
    # A value that is not an array is one element: its JSON.
    return TensorPort(name, datatype, tuple(shape) or (1,)) if datatype else TensorPort(name, TEXTS, (1,))


def _chosen(root: Schema, schema: Any) -> Schema:
    """The first alternative that is not null."""
    others = [choice for choice in choices_of(root, schema) if choice.get("type") != "null"]
    return others[0] if others else {}


def model_metadata(entry: ModelEntry, version: VersionEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "versions": list(entry.versions),
        "platform": PLATFORM,
        "inputs": [port.view for port in input_ports(version)],
        "outputs": [port.view for port in output_ports(version)],
    }


def model_config(entry: ModelEntry, version: VersionEntry) -> dict[str, Any]:
    """The members of Triton's model configuration that have a meaning here. A request is one item, never a batch."""
    policy = entry.info.policy
    return {
        "name": entry.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"specific": {"versions": list(entry.versions)}},
        "max_batch_size": 0,
        "input": [_config_port(port) for port in input_ports(version)],
        "output": [_config_port(port) for port in output_ports(version)],
        "dynamic_batching": {
            "preferred_batch_size": [policy.max_batch_size],
            "max_queue_delay_microseconds": round(policy.max_wait_s * 1e6),
        },
    }


def _config_port(port: TensorPort) -> dict[str, Any]:
    return {"name": port.name, "data_type": f"TYPE_{config_type(port.datatype)}", "dims": list(port.shape)}


def config_type(datatype: str) -> str:
    """The datatype in the words of a model configuration, which differ for texts alone."""
    return "STRING" if datatype == TEXTS else datatype


def repository_index(
    models: Mapping[str, ModelEntry], workers: Sequence[WorkerInfo], *, ready_only: bool
) -> list[dict[str, str]]:
    """A row per version of each model."""
    rows = [_row(entry, version, workers) for entry in models.values() for version in entry.versions.values()]
    return [row for row in rows if row["state"] == "READY"] if ready_only else rows


def _row(entry: ModelEntry, version: VersionEntry, workers: Sequence[WorkerInfo]) -> dict[str, str]:
    row = {"name": entry.name, "version": version.name, "state": "READY", "reason": ""}
    if version.capacity.ready_slots:
        return row
    why = why_unserved(workers, entry.name, version)
    return {**row, "state": "LOADING" if why == STILL_LOADING else "UNAVAILABLE", "reason": why}
