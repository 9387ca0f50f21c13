"""A gateway, a worker and the models that the tests of the Open Inference Protocol share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, WorkerProcess
from tests.onnx_models import saved, sum_and_difference

ROOT = Path(__file__).parents[4]
ARRAYS = HANDLERS / "arrays.py"


def models(folder: Path) -> dict[str, Any]:
    return {
        "simple": {"source": str(saved(sum_and_difference(), folder / "simple.onnx"))},
        "square": {"source": str(ROOT / "examples" / "square.py")},
        "scaled": {"source": f"{ARRAYS}:scaled", "query": ["unit"]},
        "mirror": {"source": f"{ARRAYS}:Mirror"},
        "measured": {"source": f"{ARRAYS}:measured"},
        "counted": {"source": f"{ARRAYS}:counted"},
        "slow": {"source": f"{ARRAYS}:slow"},
        "told": {"source": f"{ARRAYS}:Told"},
    }


@contextmanager
def oip_stack(redis_url: str, folder: Path, **settings: Any) -> Iterator[GatewayClient]:
    declared = models(folder)
    env = {"PENSTOCK_STORE__BLOB_DIR": str(folder / "blobs")}
    with (
        WorkerProcess(redis_url, folder / "w", declared, env) as worker,
        gateway_process(redis_url, folder / "g", models=declared, env=env, **settings) as client,
    ):
        worker.await_ready()
        eventually(lambda: client.get("/v2/health/ready").status_code == 200)
        yield client
