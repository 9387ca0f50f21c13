"""Renders the Helm chart with Helm's own engine and validates the objects, as a program: JSON with cases in, with objects out.

It runs in a process of its own, because Helm's engine brings the runtime of Go. Objects of Kubernetes are held against the
strict schemas of the oldest and of the newest version, those of KEDA and of the Prometheus operator against models that are
generated from their definitions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import helm_python
import jsonschema_rs
import yaml

CHART = Path(__file__).parents[2] / "compose" / "helm"
OLDEST = "1.30.0"
_ELSEWHERE = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}
Object = dict[str, Any]


def rendered(case: Object) -> Object:
    """The objects, the faults found in them, and the error if the chart or its schema refuses the values."""
    options = {"name": "penstock", "namespace": "ml", "is_upgrade": case["upgrade"], "is_install": not case["upgrade"]}
    try:
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(case["values"])
            texts = chart.render(case["values"], **options)
    except helm_python.HelmError as error:
        return {"objects": [], "faults": [], "error": str(error)}
    objects = [
        item for name, text in sorted(texts.items()) if name.endswith(".yaml") for item in yaml.safe_load_all(text) if item
    ]
    faults = [f"{item['kind']} {item['metadata']['name']}: {fault}" for item in objects for fault in faults_of(item)]
    return {"objects": objects, "faults": faults, "error": ""}


def faults_of(item: Object) -> Iterator[str]:
    if module := _ELSEWHERE.get(item["apiVersion"]):
        yield from _faults_elsewhere(item, module)
        return
    for version in (OLDEST, _newest()):
        for error in _validator(item["kind"], item["apiVersion"], version).iter_errors(item):
            yield f"{version}: {'/'.join(map(str, error.instance_path))}: {error.message}"


def _faults_elsewhere(item: Object, module: str) -> Iterator[str]:
    """A model ignores fields that it does not know, so what it gives back is compared with what it was given."""
    try:
        read = getattr(import_module(module), item["kind"]).model_validate(item)
    except ValueError as error:
        yield str(error)
        return
    back = json.loads(read.model_dump_json(by_alias=True, exclude_unset=True))
    if unknown := sorted(_paths(item) - _paths(back)):
        yield f"unknown fields: {', '.join(unknown)}"


def _paths(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict):
        return {path, *(found for key, inner in value.items() for found in _paths(inner, f"{path}/{key}"))}
    if isinstance(value, list):
        return {path, *(found for number, inner in enumerate(value) for found in _paths(inner, f"{path}/{number}"))}
    return {path}


def _schemas() -> Any:
    return files("kubernetes_validate") / "kubernetes-json-schema"


@cache
def _newest() -> str:
    names = (entry.name for entry in _schemas().iterdir() if entry.name.endswith("-local-strict"))
    versions = [name.removeprefix("v").removesuffix("-local-strict") for name in names]
    return str(max(versions, key=lambda version: [int(part) for part in version.split(".")]))


@cache
def _registry(version: str) -> jsonschema_rs.Registry:
    definitions = json.loads((_schemas() / f"v{version}-local-strict" / "_definitions.json").read_text("utf-8"))
    return jsonschema_rs.Registry([("json-schema:///api/_definitions.json", definitions)])


@cache
def _validator(kind: str, api: str, version: str) -> jsonschema_rs.Draft202012Validator:
    group, _, number = api.rpartition("/")
    name = "-".join(filter(None, [kind.lower(), group.partition(".")[0], number]))
    schema = json.loads((_schemas() / f"v{version}-local-strict" / f"{name}.json").read_text("utf-8"))
    return jsonschema_rs.Draft202012Validator(schema, registry=_registry(version))


def main() -> None:
    cases: dict[str, Object] = json.load(sys.stdin)
    found = {name: rendered(case) for name, case in cases.items()}
    found["lint"] = {"messages": helm_python.lint(CHART, cases["default"]["values"], strict=True)["messages"]}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
