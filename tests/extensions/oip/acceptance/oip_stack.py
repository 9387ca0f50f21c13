"""A gateway, a worker and the models that the tests of the Open Inference Protocol share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.worker_process import HANDLERS
from tests.onnx_models import saved, sum_and_difference
from tests.stack import Stack

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
def oip_stack(redis_url: str, folder: Path, **settings: Any) -> Iterator[Stack]:
    with Stack(folder, models(folder), store=redis_url) as stack:
        stack.start_worker()
        stack.start_gateway(**settings)
        stack.await_ready()
        yield stack
