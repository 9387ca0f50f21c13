from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from penstock.cli.jobs.call import max_batch_size_of, read_input


def test_an_argument_is_json() -> None:
    assert read_input('{"x": 4}', None) == ({"x": 4}, None)


def test_text_that_is_not_json_says_how_to_send_it() -> None:
    with pytest.raises(typer.BadParameter, match="Quote text as JSON"):
        read_input("hello", None)


def test_text_with_a_media_type_goes_as_it_is() -> None:
    assert read_input("hello", "text/plain") == (b"hello", "text/plain")


def test_an_at_sign_names_a_file() -> None:
    assert read_input("@cat.jpg", None) == (Path("cat.jpg"), None)


@pytest.mark.parametrize(("content", "kind"), [(b"[1, 2]", "application/json"), (b"\xff\xd8", "application/octet-stream")])
def test_a_pipe_is_json_if_it_can_be(monkeypatch: pytest.MonkeyPatch, content: bytes, kind: str) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert read_input("-", None) == (content, kind)


def test_the_batch_limit_is_that_of_the_models_policy() -> None:
    models: list[dict[str, Any]] = [{"name": "cube"}, {"name": "square", "policy": {"max_batch_size": 8}}]
    assert max_batch_size_of(models, "square") == 8
    assert max_batch_size_of(models, "cube") is None
    assert max_batch_size_of(models, "gone") is None
