"""A real S3-compatible server in a process of its own, for tests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.eventually import eventually

BUCKET = "penstock"
_ADDRESS = re.compile(rb"Running on (http://127\.0\.0\.1:\d+)")


@contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """Start a server, and yield the environment in which `s3://penstock` is its bucket; the server's log goes into `folder`."""
    log = folder / "s3.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stdout=said, stderr=said
        )
    try:
        address = eventually(lambda: _ADDRESS.search(log.read_bytes()), timeout_s=30.0)[1].decode()
        assert httpx2.put(f"{address}/{BUCKET}").status_code == 200
        yield {
            "AWS_ENDPOINT": address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
        }
    finally:
        process.kill()
        process.wait()
