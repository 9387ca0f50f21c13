"""Pipelines for tests, with the models of their stages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.integration.worker_process import HANDLERS

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


def notes(path: Path) -> Counter[str]:
    """What the stages noted in a file: how often each ran, by model and tag."""
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()
