"""Metrics that a handler counts itself, from its process to the page that Prometheus reads."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import psutil

from penstock.loadtest.stack import free_port
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess

MODEL = "measured"
TABLE = {MODEL: {"source": str(HANDLERS / "measured.py"), "max_crashes": 1}}


def lines(port: int) -> list[str]:
    """What the worker shows of the handler's own metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        page = answer.read().decode().splitlines()
    return [line for line in page if line.startswith(("penstock_model_items", "penstock_model_sizes", "penstock_model_words"))]


def test_what_a_handler_counts_is_on_the_workers_page_and_goes_on_growing_when_its_child_is_replaced(
    fresh_redis: str, tmp_path: Path
) -> None:
    port, ours = free_port(), 'model="measured",version="1"'
    jobs = JobClient(fresh_redis, MODEL)
    with WorkerProcess(fresh_redis, tmp_path / "w", TABLE, metrics_port=port) as worker:
        worker.await_ready()
        # Before any batch: the value that `initialize` set, and nothing of the warm-up.
        eventually(lambda: lines(port) == ['penstock_model_words{model="measured",slot="0",version="1"} 3.0'])
        jobs.await_final(jobs.submit("yes"))
        # The figures travel before the answers.
        assert f'penstock_model_items_total{{{ours},word="yes"}} 1.0' in lines(port)
        assert f"penstock_model_sizes_count{{{ours}}} 1.0" in lines(port)
        jobs.await_final(jobs.submit("exit"))
        jobs.await_final(jobs.submit("yes"))
        found = lines(port)
        assert f'penstock_model_items_total{{{ours},word="yes"}} 2.0' in found
        assert f"penstock_model_sizes_sum{{{ours}}} 2.0" in found
        assert not [line for line in found if "warm" in line]
        # The registry says how busy the machine is.
        [announced] = jobs.store.workers()
        assert announced.machine is not None
        assert announced.machine.memory_total_bytes == psutil.virtual_memory().total
    jobs.close()
