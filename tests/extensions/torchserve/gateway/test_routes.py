"""Which paths are TorchServe's, and what a request of them is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.extensions.torchserve.gateway.request import (
    form_fields_of,
    handler_headers,
    model_name_in,
    own_options,
    query_fields,
    with_fields,
)
from penstock.extensions.torchserve.gateway.routes import TorchServeTarget, is_management, target_of
from penstock.inputs.form import FormPart


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/predictions/m", TorchServeTarget("/predictions/{model}", "m", "", "False", "")),
        ("/predictions/m/", TorchServeTarget("/predictions/{model}", "m", "", "False", "")),
        ("/predictions/m/2", TorchServeTarget("/predictions/{model}/{version}", "m", "2", "False", "")),
        ("/predictions/m/2/a/b/", TorchServeTarget("/predictions/{model}/{version}", "m", "2", "False", "a/b")),
        ("/explanations/m", TorchServeTarget("/explanations/{model}", "m", "", "True", "")),
        ("/v1/models/m:predict", TorchServeTarget("/v1/models/{model}:predict", "m", explain="False")),
        ("/v1/models/m:explain", TorchServeTarget("/v1/models/{model}:explain", "m", explain="True")),
        ("/v2/models/m/infer", TorchServeTarget("/v2/models/{model}/infer", "m", explain="False", is_v2=True)),
        (
            "/v2/models/m/versions/2/explain",
            TorchServeTarget("/v2/models/{model}/versions/{version}/explain", "m", "2", explain="True", is_v2=True),
        ),
        ("/invocations", TorchServeTarget("/invocations", has_fields=True)),
        ("/models/m/invoke", TorchServeTarget("/models/{model}/invoke", "m", has_fields=True)),
        ("/m/predict", TorchServeTarget("/{model}/predict", "m", has_fields=True)),
        ("/m/2/predict", TorchServeTarget("/{model}/{version}/predict", "m", "2", has_fields=True)),
        ("/predictions", TorchServeTarget("/predictions/{model}", "", "", "False", "")),
        ("/ping/", TorchServeTarget("/ping")),
        ("/api-description", TorchServeTarget("/api-description")),
    ],
)
def test_a_path_names_its_target(path: str, target: TorchServeTarget) -> None:
    assert target_of(path, "POST") == target


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/models/m",
        "/v1/models/m/jobs",
        "/v1/models/m:other",
        "/v1/models/a/b:predict",
        "/v2/models/m",
        "/v2/models/m/a/infer",
        "/v2/models/m/versions//infer",
        "/models/m",
        "/models/a/b/invoke",
        "/a/b/c/predict",
        "/predict",
        "/ui/predict",
        "/cog/m/predictions",
        "/replicate/v1/predictions",
        "/livez",
    ],
)
def test_other_paths_are_left_to_the_rest(path: str) -> None:
    assert target_of(path, "POST") is None


@given(st.text(st.sampled_from("/:.%aä\x00") | st.characters(), max_size=40))
def test_any_path_has_a_target_or_none(rest: str) -> None:
    for start in ("/", "/predictions/", "/v1/models/", "/v2/models/", "/models/"):
        found = target_of(start + rest, "POST")
        assert found is None or "/" not in found.model


def test_the_root_is_the_dashboards_unless_it_is_asked_for_its_options() -> None:
    assert target_of("/", "GET") is None
    assert target_of("/", "OPTIONS") == TorchServeTarget("/api-description")


@pytest.mark.parametrize(
    ("path", "expected"), [("/models", True), ("/models/m", True), ("/token", True), ("/v1/models", False)]
)
def test_paths_of_management_are_known(path: str, expected: bool) -> None:
    assert is_management(path) is expected


def test_what_a_caller_sends_under_torchserves_own_names_is_dropped() -> None:
    sent = [(b"explain", b"True"), (b"url_path", b"x"), (b"describe", b"True"), (b"x-request-id", b"y"), (b"x-a", b"1")]
    target = TorchServeTarget("/predictions/{model}", "m", explain="False", url_path="ä/€")
    assert handler_headers(sent, target, b"id") == [
        (b"x-a", b"1"),
        (b"x-request-id", b"id"),
        (b"explain", b"False"),
        (b"url_path", b"\xe4/?"),
    ]
    assert handler_headers([], TorchServeTarget("/m/predict", "m"), b"id") == [(b"x-request-id", b"id")]


def test_of_a_query_only_our_options_and_the_models_parameters_are_kept() -> None:
    assert own_options(b"now=1&deadline_s=2&language=de", ("language",)) == b"deadline_s=2&language=de"
    assert own_options(b"x=%ff&\xfe&deadline_s=2&deadline_s=3", ()) == b"deadline_s=3"
    assert own_options(b"&".join(b"x=1" for _ in range(2_000)), ()) == b""


def test_the_parameters_of_a_query_are_fields() -> None:
    assert query_fields(b"a=1&b=&a=%C3%A4") == [FormPart("a", b"1"), FormPart("b", b""), FormPart("a", "ä".encode())]
    with pytest.raises(BadRequest, match="at most 256"):
        query_fields(b"&".join(b"a=1" for _ in range(257)))


def test_a_body_that_is_no_form_is_a_field_that_keeps_its_type() -> None:
    assert with_fields([FormPart("a", b"1")], b"x", "image/png") == [
        FormPart("a", b"1"),
        FormPart("body", b"x", "image/png", ""),
    ]
    assert with_fields([FormPart("a", b"1")], b"b=2", "application/x-www-form-urlencoded") == [
        FormPart("a", b"1"),
        FormPart("b", b"2"),
    ]


def test_the_last_field_of_a_models_name_counts() -> None:
    assert model_name_in(query_fields(b"model_name=a&model_name=b")) == "b"
    assert model_name_in(form_fields_of(b"{}", "application/json")) == ""
