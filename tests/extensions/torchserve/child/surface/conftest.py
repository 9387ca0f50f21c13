"""The hook of `ts`, installed for one test and taken out again; and what a handler needs of its context."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.extensions.torchserve.child.surface.hook import TorchServeFinder, install
from penstock.extensions.torchserve.child.surface.metrics import metrics_of
from penstock.handlers.metrics.metrics import HandlerMetrics


@pytest.fixture
def ts() -> Iterator[None]:
    """`import ts` finds penstock's."""
    install()
    yield
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, TorchServeFinder)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "ts"]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an unpacked archive, from which can be imported; its modules are forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def counted() -> HandlerMetrics:
    return HandlerMetrics()


@pytest.fixture
def context(folder: Path, counted: HandlerMetrics) -> Callable[..., Any]:
    """Make the context of an archive whose manifest has these files. `headers` are those of its only request."""

    def make(*, settings: dict[str, Any] | None = None, headers: dict[str, str] | None = None, **files: str) -> Any:
        return SimpleNamespace(
            system_properties={"model_dir": str(folder), "gpu_id": None, "batch_size": 1},
            manifest={"model": {"modelName": "digits", **files}},
            model_yaml_config=settings or {},
            metrics=metrics_of(counted, "digits", {}),
            get_request_header=lambda index, name: (headers or {}).get(name),
        )

    return make
