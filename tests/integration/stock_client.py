"""A stock Celery client for tests: `celery_client.py` in a process of its own, and what it is told to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


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
