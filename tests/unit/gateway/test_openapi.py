"""What the OpenAPI document promises. A fuzzer that read it (schemathesis) found each of these answers undocumented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.routing import NoMatchFound

from penstock.broker.backlog import SlotCapacity
from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.aio import AsyncStore
from penstock.gateway.app import Gateway
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.openapi import document
from penstock.model_spec import ModelInfo, VersionInfo
from penstock.settings.tables import Settings


@pytest.fixture(scope="module")
def gateway() -> Gateway:
    nowhere = AsyncStore("redis://127.0.0.1:1")
    return Gateway(Settings.load(None, {}), store=nowhere, blobs=LocalBlobs(Path("nowhere")), lifetime=Lifetime())


def answers(gateway: Gateway, path: str, method: str = "get", info: VersionInfo | None = None) -> dict[str, Any]:
    version = VersionEntry("1", info, None, SlotCapacity())
    entry = ModelEntry(ModelInfo("m", versions={"1": info}), version, {"1": version})
    found: dict[str, Any] = document(gateway.parts.api, {"m": entry})["paths"][path][method]["responses"]
    return {status: sorted(answer.get("content", {})) for status, answer in found.items()}


def test_a_result_may_be_of_any_type_or_not_there_yet(gateway: Gateway) -> None:
    described = answers(gateway, "/v1/jobs/{job_id}/result")
    problem = ["application/problem+json"]
    refused = {"409": problem, "416": problem, "default": problem}
    assert described == {"200": ["*/*"], "202": ["application/json"], "206": ["*/*"], "304": [], **refused}


def test_a_job_may_be_unchanged(gateway: Gateway) -> None:
    assert answers(gateway, "/v1/jobs/{job_id}")["304"] == []
    assert "304" not in answers(gateway, "/v1/jobs/{job_id}", "delete")


def test_events_and_metrics_are_no_json(gateway: Gateway) -> None:
    assert answers(gateway, "/v1/jobs/{job_id}/events")["200"] == ["application/x-ndjson", "text/event-stream"]
    assert answers(gateway, "/metrics")["200"] == ["text/plain"]


def test_a_model_that_yields_may_answer_with_the_events_of_its_job(gateway: Gateway) -> None:
    described = answers(gateway, "/predictions/m", "post", VersionInfo(streams=True))["200"]
    assert {"text/event-stream", "application/x-ndjson"} <= set(described)


def test_a_model_without_an_output_schema_may_answer_with_bytes(gateway: Gateway) -> None:
    assert "*/*" in answers(gateway, "/predictions/m", "post", VersionInfo())["200"]
    typed = VersionInfo(output_schema={"type": "integer"})
    assert answers(gateway, "/predictions/m", "post", typed)["200"] == ["application/json"]


def test_the_routes_of_a_model_name_the_parameters_of_its_settings(gateway: Gateway) -> None:
    version = VersionEntry("1", VersionInfo(input_schema={"type": "integer"}), None, SlotCapacity())
    entry = ModelEntry(ModelInfo("m", query=("language",), request_headers=("x-tenant",)), version, {"1": version})
    paths = document(gateway.parts.api, {"m": entry})["paths"]
    own = {("language", "query"), ("x-tenant", "header")}
    for path in ("/predictions/m", "/v1/models/m/jobs", "/v1/models/m/jobs:batch", "/v1/models/m/versions/1/jobs:batch"):
        found = {(parameter["name"], parameter["in"]) for parameter in paths[path]["post"]["parameters"]}
        assert own <= found, path
        assert "path" not in {place for _, place in found}
    many = paths["/v1/models/m/jobs:batch"]["post"]
    assert {"partial", "priority", "tags"} <= {parameter["name"] for parameter in many["parameters"]}
    assert many["requestBody"]["content"]["application/json"]["schema"]["items"] == {"$ref": "#/components/schemas/m.1.input"}
    generic = {parameter["name"] for parameter in paths["/v1/models/{model}/jobs:batch"]["post"]["parameters"]}
    assert not {name for name, _ in own} & generic
    ids = [operation["operationId"] for item in paths.values() for operation in item.values() if "operationId" in operation]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("media", ["image/png", "audio/wav", "application/octet-stream"])
def test_a_model_whose_annotation_names_a_media_type_answers_with_that_alone(gateway: Gateway, media: str) -> None:
    described = answers(gateway, "/predictions/m", "post", VersionInfo(answers=(media,)))["200"]
    assert described == [media]
    streams = answers(gateway, "/predictions/m", "post", VersionInfo(answers=(media,), streams=True))["200"]
    assert streams == sorted([media, "text/event-stream", "application/x-ndjson"])


def test_an_output_of_any_type_may_be_a_bundle_of_files(gateway: Gateway) -> None:
    described = answers(gateway, "/predictions/m", "post", VersionInfo())["200"]
    assert described == ["*/*", "application/json", "multipart/form-data", "multipart/mixed"]


@pytest.mark.parametrize(
    ("schema", "takes"),
    [
        ({"type": "object", "properties": {"x": {"type": "integer"}}}, True),
        ({"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"}, True),
        ({"type": "integer"}, False),
        (None, False),
    ],
)
def test_an_input_with_fields_may_be_a_form(gateway: Gateway, schema: dict[str, Any] | None, takes: bool) -> None:
    info = VersionInfo(input_schema=schema)
    version = VersionEntry("1", info, None, SlotCapacity())
    entry = ModelEntry(ModelInfo("m", versions={"1": info}), version, {"1": version})
    body = document(gateway.parts.api, {"m": entry})["paths"]["/predictions/m"]["post"]["requestBody"]["content"]
    assert ("multipart/form-data" in body) is takes


def test_a_document_names_the_prefix_of_a_proxy_and_its_page_is_off_with_the_dashboard(gateway: Gateway) -> None:
    settings = Settings.load(None, {}, flags={"gateway.dashboard": False, "gateway.root_path": "/penstock"})
    nowhere = AsyncStore("redis://127.0.0.1:1")
    plain = Gateway(settings, store=nowhere, blobs=LocalBlobs(Path("nowhere")), lifetime=Lifetime())
    assert document(plain.parts.api, {})["servers"] == [{"url": "/penstock"}]
    assert "servers" not in document(gateway.parts.api, {})
    assert gateway.parts.api.url_path_for("docs") == "/docs"
    with pytest.raises(NoMatchFound):
        plain.parts.api.url_path_for("docs")
