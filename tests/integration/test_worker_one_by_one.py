"""A function of one item that takes long, in a real worker: each job is answered when its own item is done (D80)."""

from __future__ import annotations

from pathlib import Path

from tests.integration.worker_process import JobClient, WorkerProcess

MODEL = "slow"
CODE = "import time, penstock\n@penstock.model\ndef slow(x: int) -> int:\n    time.sleep(0.1)\n    return x\n"


def test_jobs_that_waited_together_are_answered_one_by_one(fresh_redis: str, tmp_path: Path) -> None:
    source = tmp_path / "slow.py"
    source.write_text(CODE)
    jobs = JobClient(fresh_redis, MODEL)
    waiting = jobs.submit(*range(8))
    with WorkerProcess(fresh_redis, tmp_path / "w", {MODEL: {"source": str(source)}}):
        ended = jobs.await_final(waiting)
    jobs.close()
    assert [job.batch.size for job in ended if job.batch] == [1] * 8
