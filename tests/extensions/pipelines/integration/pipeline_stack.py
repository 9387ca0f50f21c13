"""A real worker with pipelines, for tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from penstock.broker.blobs.files import LocalBlobs
from tests.integration.worker_process import HANDLERS, WorkerProcess

STAGES = HANDLERS / "stages.py"
MODELS: dict[str, Any] = {
    **{name: {"source": f"{STAGES}:Add", "max_wait_s": 0.0, "retry_delay_s": 0.05} for name in ("a", "b", "c")},
    "join": {"source": f"{STAGES}:Join"},
    "grow": {"source": f"{STAGES}:Grow"},
    "exact": {"source": f"{STAGES}:Exact"},
    "measure": {"source": f"{STAGES}:Measure"},
    "narrow": {"source": f"{STAGES}:Add", "max_queue_depth": 2, "max_batch_size": 1},
}


def stage(name: str, model: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "model": model, "after": list(after), **more}


def chain(**more: Any) -> dict[str, Any]:
    return {"stages": [stage("first", "a"), stage("second", "b", "first"), stage("third", "c", "second")], **more}


PIPELINES: dict[str, Any] = {
    "chain": chain(at_once=600),
    "fork": {"stages": [stage("left", "a"), stage("right", "b"), stage("both", "join", "right", "left")]},
    "blocks": {"stages": [stage("make", "grow"), stage("left", "measure", "make"), stage("right", "measure", "make")]},
    "typed": {"stages": [stage("only", "exact"), stage("more", "a", "only")]},
    "block": {"stages": [stage("start", "a"), stage("make", "grow", "start")]},
    "fields": {
        "stages": [
            stage("sum", "a"),
            stage("made", "join", input={"corner": "input.box.x.1", "sum": "sum.n"}),
        ],
        "output": {"made": "made", "given": "input.box"},
    },
    "squeeze": {"stages": [stage("start", "a"), stage("middle", "narrow", "start")]},
    "nested": {"stages": [stage("inner", "chain"), stage("last", "a", "inner")]},
}


class PipelineWorker(WorkerProcess):
    """As `WorkerProcess`, with pipelines beside the models."""

    def __init__(
        self,
        url: str,
        folder: Path,
        models: Mapping[str, Any],
        pipelines: Mapping[str, Any],
        env: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        super().__init__(url, folder, models, {"PENSTOCK_PIPELINES": json.dumps(pipelines), **(env or {})}, **settings)
        self._slots += len(pipelines)
        self.blobs = LocalBlobs(folder / "state" / "blobs")

    def __enter__(self) -> Self:
        self.start()
        return self


def notes(path: Path) -> Counter[str]:
    """What the stages noted in a file: how often each ran, by model and tag."""
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()
