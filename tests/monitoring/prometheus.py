"""A real Prometheus (of Debian's package) with the scrape jobs and rules of this repository."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
import pytest

from penstock.loadtest.stack import free_port
from tests.eventually import eventually

FILES = Path(__file__).parents[2] / "compose"
CONFIG = FILES / "prometheus" / "prometheus.yml"
RULES = FILES / "prometheus" / "rules"
_EVERY_S = 0.5


def program(name: str) -> str:
    """Path of `prometheus` or `promtool`. Without it the test is skipped, or fails if PENSTOCK_TEST_PROMETHEUS=required."""
    found = shutil.which(name)
    if found is None:
        missing = f"{name} is not installed: apt-get install prometheus"
        if os.environ.get("PENSTOCK_TEST_PROMETHEUS") == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


class Prometheus:
    """Scrapes `targets` twice a second: ports of this machine, by the name of the scrape job in the repository's file."""

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[int]]) -> None:
        self._folder = folder
        self._targets = targets
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{free_port()}"
        self._client = httpx2.Client(base_url=self.url, timeout=10.0)

    def __enter__(self) -> Prometheus:
        binary = program("prometheus")
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "prometheus.yml"
        config.write_text(here(CONFIG.read_text("utf-8"), self._targets), "utf-8")
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    binary,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )
        eventually(self._ready, timeout_s=20.0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=20.0)

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()[-2_000:]
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def get(self, path: str, **params: str) -> Any:
        answer = self._client.get(f"/api/v1/{path}", params=params).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an instant query: each with `metric` (its labels) and `value` (moment, text).

        Scrapes are half a second apart, and a scrape may take that long. If the machine stood still for longer, there are no
        samples until the next scrape, so the caller must ask again.
        """
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found

    def values(self, expr: str, label: str) -> dict[str, float]:
        return {sample["metric"].get(label, ""): float(sample["value"][1]) for sample in self.query(expr)}

    def value(self, expr: str) -> float:
        """The value of the only sample; NaN if there is no sample."""
        found = self.query(expr)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else math.nan


def here(config: str, targets: Mapping[str, Sequence[int]]) -> str:
    """The configuration for this machine: ports in place of container names, this tree's rules, and short intervals."""
    for job, ports in targets.items():
        found = re.compile(rf"(  - job_name: {job}\n)    dns_sd_configs:\n(?:      .*\n)+")
        fixed = json.dumps([f"127.0.0.1:{port}" for port in ports])
        config, count = found.subn(rf"\1    static_configs: [{{ targets: {fixed} }}]\n", config)
        assert count == 1, job
    config = re.sub(r"(scrape|evaluation)_interval: .*", rf"\1_interval: {round(_EVERY_S * 1000)}ms", config)
    return config.replace("/etc/prometheus/rules", str(RULES))
