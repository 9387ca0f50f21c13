"""What `pt2` of model-config.yaml makes of a model."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.extensions.torchserve.child.surface.compiling import check_valid_pt2_backend, compile_options, compiled


@pytest.mark.parametrize(
    ("pt2", "expected"),
    [
        (None, None),
        ("inductor", {"backend": "inductor"}),
        ({"backend": "eager", "mode": "reduce-overhead"}, {"backend": "eager", "mode": "reduce-overhead"}),
        ({"compile": {"enable": True}}, {}),
        ({"compile": {"enable": True, "backend": "eager"}}, {"backend": "eager"}),
        ({"compile": {"enable": False, "backend": "eager"}}, None),
        ({"compile": {"backend": "eager"}}, None),
        ({"compile": "eager"}, None),
        ({"export": {"aot_compile": True}}, None),
        (["eager"], None),
    ],
)
def test_both_forms_of_the_options_are_read(pt2: Any, expected: dict[str, Any] | None) -> None:
    assert compile_options(pt2) == expected


@pytest.mark.parametrize(("name", "known"), [("inductor", True), ("openvino", True), ("INDUCTOR", False), ("other", False)])
def test_an_unknown_backend_is_a_warning(name: str, known: bool, caplog: pytest.LogCaptureFixture) -> None:
    assert check_valid_pt2_backend(name) is known
    assert ("is not a supported backend" in caplog.text) is not known


def test_a_model_that_cannot_be_compiled_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch", reason="torch compiles: pip install 'penstock-inference[torch]'")
    model = torch.nn.Linear(2, 2)
    assert compiled(model, {"compile": {"enable": True, "backend": "eager", "nonsense": 1}}) is model
    assert "runs uncompiled" in caplog.text
    assert compiled(model, "other") is model
    assert compiled(model, {"compile": {"enable": True, "backend": "eager"}}) is not model
