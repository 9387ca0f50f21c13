"""Stock Celery for tests, in processes of their own: a client, which is told what to run, and a worker of a user's own app."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def stock_worker(url: str, folder: Path) -> Iterator[None]:
    """Run the worker of `shop_app.py` on Celery's default queue."""
    here = str(Path(__file__).parent)
    words = ["--workdir", here, "-A", "shop_app", "-b", url, "--result-backend", url, "worker", "-P", "solo", "-l", "WARNING"]
    command = [sys.executable, "-m", "celery", *words, "--without-mingle", "--without-gossip", "--without-heartbeat"]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with (folder / "shop.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class StockClient:
    """The client's process; what it raises is raised here."""

    def __init__(self, url: str, folder: Path) -> None:
        script = Path(__file__).with_name("celery_client.py")
        env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        command = [sys.executable, "-I", str(script), url]
        self.process = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, code: str) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps({"run": code}), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def found(self, code: str) -> Any:
        answer = self.run(code)
        assert "error" not in answer, answer
        return answer["found"]
