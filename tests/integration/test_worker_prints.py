"""What model code prints or logs, with a real worker: each line in the worker's log names its batch and, if it can, its job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.eventually import eventually
from tests.integration.worker_process import JobClient, WorkerProcess

CODE = """
import logging
import os
import sys

import penstock

logging.basicConfig(level="INFO", format="%(message)s")
print("imported")


class Chatty(penstock.Handler):
    max_wait_s = 0.5

    def initialize(self, context: penstock.Context) -> None:
        self.context = context
        print("initialized")

    def preprocess(self, inputs: list[str]) -> list[str]:
        print("preprocess", *sorted(inputs))
        return inputs

    def inference(self, batch: list[str]) -> list[str]:
        logging.info("inference " + " ".join(sorted(batch)))
        sys.stderr.write("two\\nlines of " + " ".join(sorted(batch)) + "\\n")
        os.write(1, b"written by a library\\n")
        return batch

    def postprocess(self, outputs: list[str]) -> list[str]:
        print("postprocess", *sorted(outputs), flush=True)
        return outputs
"""


def test_lines_have_the_batch_that_they_were_printed_for_and_a_lone_items_job(fresh_redis: str, tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(CODE)
    jobs = JobClient(fresh_redis, "chatty")
    models = {"chatty": {"source": str(tmp_path / "chatty.py"), "warm_up": False}}
    with WorkerProcess(fresh_redis, tmp_path / "w", models) as worker:
        worker.await_ready()

        def said(start: str) -> dict[str, Any]:
            return eventually(lambda: next((e for e in worker.events("handler_said") if e["line"].startswith(start)), {}))

        [alone] = jobs.submit("a")
        [ended] = jobs.await_final([alone])
        assert ended.batch is not None
        for line in ("preprocess a", "inference a", "two", "lines of a", "postprocess a"):
            event = said(line)
            assert (event["model"], event["batch_id"], event["job_id"]) == ("chatty", ended.batch.id, str(alone)), line
        for line in ("imported", "initialized", "written by a library"):
            assert not {"batch_id", "job_id"} & said(line).keys(), line
    jobs.close()
