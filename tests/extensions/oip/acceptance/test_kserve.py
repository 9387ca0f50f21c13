"""KServe's unmodified clients, from an environment of their own: `make kserve` makes it and runs this file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from penstock.loadtest.stack import free_port
from tests.extensions.oip.acceptance.oip_stack import oip_stack

ROOT = Path(__file__).parents[4]
PYTHON = ROOT / "build" / "kserve" / "bin" / "python"


@pytest.mark.skipif(not PYTHON.exists(), reason="no build/kserve: make kserve")
def test_kserves_clients_pass_over_rest_and_grpc(redis_url: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    port = free_port()
    with oip_stack(redis_url, tmp_path, grpc_port=port) as stack:
        ports = (str(stack.http.base_url.port), str(port))
        command = [str(PYTHON), str(Path(__file__).with_name("kserve_client.py")), *ports]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip().endswith("passed"), done.stdout + done.stderr
