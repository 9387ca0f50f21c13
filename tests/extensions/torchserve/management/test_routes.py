"""Which paths TorchServe's management answers, and with which methods."""

from __future__ import annotations

import pytest

from penstock.extensions.torchserve.gateway.errors import TorchServeError
from penstock.extensions.torchserve.management.routes import (
    Action,
    is_served_beside,
    management_description,
    management_target,
    model_description,
)


@pytest.mark.parametrize(
    ("method", "path", "action", "model", "version"),
    [
        ("OPTIONS", "/", Action.API_DESCRIPTION, "", ""),
        ("GET", "/api-description", Action.API_DESCRIPTION, "", ""),
        ("GET", "/ping", Action.PING, "", ""),
        ("GET", "/token", Action.TOKEN, "", ""),
        ("GET", "/models", Action.LIST, "", ""),
        ("HEAD", "/models/", Action.LIST, "", ""),
        ("POST", "/models", Action.REGISTER, "", ""),
        ("GET", "/models/m", Action.DESCRIBE, "m", ""),
        ("GET", "/models/m/", Action.DESCRIBE, "m", ""),
        ("GET", "/models/m/all", Action.DESCRIBE, "m", "all"),
        ("PUT", "/models/m/2.0", Action.SCALE, "m", "2.0"),
        ("DELETE", "/models/m/2.0", Action.UNREGISTER, "m", "2.0"),
        ("OPTIONS", "/models/m", Action.DESCRIPTION, "m", ""),
        ("PUT", "/models/m/2.0/set-default", Action.SET_DEFAULT, "m", "2.0"),
        ("GET", "/v1/models/m", Action.READINESS, "m", ""),
        ("POST", "/workflows", Action.REGISTER_WORKFLOW, "", ""),
        ("DELETE", "/workflows/w", Action.UNREGISTER_WORKFLOW, "w", ""),
    ],
)
def test_each_path_has_its_action(method: str, path: str, action: Action, model: str, version: str) -> None:
    found = management_target(method, path)
    assert (found.action, found.model, found.version) == (action, model, version)


@pytest.mark.parametrize(
    ("method", "path", "status", "name"),
    [
        ("GET", "/", 405, "MethodNotAllowedException"),
        ("PUT", "/models", 405, "MethodNotAllowedException"),
        ("OPTIONS", "/models", 405, "MethodNotAllowedException"),
        ("PATCH", "/models/m", 405, "MethodNotAllowedException"),
        ("POST", "/models/m", 405, "MethodNotAllowedException"),
        ("POST", "/v1/models/m", 405, "MethodNotAllowedException"),
        ("GET", "/models/m/1/set-default", 405, "MethodNotAllowedException"),
        ("GET", "/nothing", 404, "ResourceNotFoundException"),
        ("GET", "/models/m/1/xx", 404, "ResourceNotFoundException"),
        ("GET", "/models/m/1/set-default/x", 404, "ResourceNotFoundException"),
        ("GET", "/models//x", 404, "ResourceNotFoundException"),
        ("GET", "/v1/models", 404, "ResourceNotFoundException"),
        ("GET", "/{model}", 404, "ResourceNotFoundException"),
        ("GET", "/predictions/m", 404, "ResourceNotFoundException"),
    ],
)
def test_every_other_path_and_method_is_refused_in_torchserves_words(method: str, path: str, status: int, name: str) -> None:
    with pytest.raises(TorchServeError) as refused:
        management_target(method, path)
    assert (refused.value.status, refused.value.name) == (status, name)


def test_a_listener_for_all_hands_over_the_paths_of_models_tokens_and_workflows_alone() -> None:
    assert all(map(is_served_beside, ("/models", "/models/m", "/token", "/workflows/w")))
    assert not any(
        map(
            is_served_beside,
            ("/", "/ping", "/v1/models/m", "/modelsx", "/predictions/models", "/models/m/invoke", "/wfpredict/w"),
        )
    )


def test_the_description_names_every_path_that_is_served() -> None:
    described = {(path, method) for path, item in management_description()["paths"].items() for method in item}
    for path, method in described:
        management_target(method.upper(), path.format(model_name="m", model_version="1"))
    assert len(described) == 13
    assert set(model_description("m")["paths"]) == {path for path, _ in described if "{model_name}" in path}
