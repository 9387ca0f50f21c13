"""What a start must not load: each of these packages costs more CPU than most of our own modules together."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from penstock.process_lifetime import loading

SERVERS = {"fastapi", "starlette", "uvicorn"}
CELERY = {"celery", "kombu", "billiard"}
MODELS = {"numpy", "onnxruntime", "torch", "PIL", "tokenizers", "pyarrow", "fsspec", "obstore"}
# Who serves models without a split loads none of this.
SPLITS = {
    "penstock.extensions.splits.split",
    "penstock.extensions.splits.gateway.entry",
    "penstock.extensions.splits.gateway.canaries",
    "penstock.extensions.splits.gateway.service",
    "penstock.extensions.splits.gateway.shadows",
}
# A worker whose program ends at once: only what it loaded until then counts.
WORKER = """
import sys
from types import SimpleNamespace
from penstock.broker import celery_app
from penstock.workers.__main__ import main

def program(**options):
    return SimpleNamespace(start=lambda: print("started", file=sys.stderr), exitcode=3)

celery_app.app = SimpleNamespace(Worker=program)
sys.argv = ["penstock.workers"]
assert main() == 3
"""
# A worker whose settings ask for no scaling, no pipeline and none of TorchServe's names.
FLEET = """
from pathlib import Path
from penstock.settings.tables import Settings
from penstock.workers.fleet.fleet import Fleet
Path("penstock.toml").write_text('[models.m]\\nsource = "m.py"\\n')
Path("m.py").touch()
Fleet(Settings.load(Path("penstock.toml"), {"PENSTOCK_REDIS_URL": "redis://127.0.0.1:1"}), name="w", app=None)
"""
PARTS = {
    "penstock.broker.store.aio",
    "penstock.extensions.autoscaling.worker.autoscaler",
    "penstock.extensions.pipelines.worker.stand_in",
    "penstock.extensions.torchserve.worker.series",
}
# A gateway that speaks no other server's protocol but those that need no setting.
GATEWAY = """
from pathlib import Path
from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.aio import AsyncStore
from penstock.gateway.app import Gateway
from penstock.gateway.asgi.connection import Lifetime
from penstock.settings.tables import Settings
store, blobs = AsyncStore("redis://127.0.0.1:1"), LocalBlobs(Path("nowhere"))
Gateway(Settings.load(None, {}), store=store, blobs=blobs, lifetime=Lifetime())
"""
OPTIONAL = {"penstock.extensions.torchserve.gateway", "penstock.extensions.webhooks.gateway.thread", "grpc"}


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("import penstock.cli.serve.up", {*SERVERS, *CELERY, *MODELS, "redis", "structlog"}),
        ("import penstock.gateway.serving", {*CELERY, *MODELS, *SPLITS}),
        (GATEWAY, {*OPTIONAL, *SPLITS}),
        ("import penstock.runs.runner", {*SERVERS, *CELERY, *MODELS}),
        (FLEET, {*SERVERS, *MODELS, *PARTS}),
        (WORKER, {*SERVERS, *MODELS, "celery.bin", "tornado", "prompt_toolkit"}),
        ("import penstock.workers.child.__main__", {*SERVERS, *CELERY, *MODELS, "redis", "pydantic", "importlib.metadata"}),
    ],
    ids=["up", "gateway", "plain-gateway", "runner", "fleet", "worker", "model"],
)
def test_a_process_loads_nothing_that_its_start_does_not_need(code: str, unneeded: set[str], tmp_path: Path) -> None:
    whole = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", whole], env=os.environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert unneeded & set(done.stdout.split()) == set()


def test_the_collector_rests_while_modules_load_and_works_again_after_an_error() -> None:
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ModuleNotFoundError, match="missing_False"), loading():
            import_module(f"missing_{gc.isenabled()}")
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
