"""What tests of fetched models share: a hub with one repository, a cache that fetches from it, and what the cache holds."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.workers.fetch.cache import CacheLimits, ModelCache
from tests.model_hub import Hub, model_hub

REPO = "org/name"
MODEL = random.Random(1).randbytes(3_000_000)
FILES = {
    "onnx/model.onnx": MODEL,
    "onnx/model.onnx_data": b"d" * 5_000,
    "labels.txt": b"cat\n",
    "run.py": b"1/0",
    "big.bin": b"b" * 9,
}
LIMITS = CacheLimits(1 << 30, stall_s=5.0)


@contextmanager
def filled_hub() -> Iterator[Hub]:
    with model_hub() as found:
        found.push(REPO, FILES)
        yield found


def made(hub: Hub, tmp_path: Path, limits: CacheLimits = LIMITS, **environment: str) -> ModelCache:
    return ModelCache(tmp_path / "cache", limits, {"HF_ENDPOINT": hub.url, **environment})


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plain(hub: Hub, data: bytes = MODEL, *, sum_of: bytes | None = None) -> str:
    hub.plain["/files/m.onnx"] = data
    return f"{hub.url}/files/m.onnx#sha256={digest(data if sum_of is None else sum_of)}"


def left(tmp_path: Path) -> list[str]:
    """The entries of the cache, whole and partial."""
    return sorted(path.name for path in (tmp_path / "cache").iterdir() if path.name not in ("locks", "known"))
