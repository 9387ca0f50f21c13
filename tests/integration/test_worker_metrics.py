"""Metrics that a handler counts itself, from its process to the page that Prometheus reads."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path
from zipfile import ZipFile

import psutil

from penstock.loadtest.stack import free_port
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess

MODEL = "measured"
TABLE = {MODEL: {"source": str(HANDLERS / "measured.py"), "max_crashes": 1}}

# The calls of a handler that was written for TorchServe. Nothing of it needs torch.
ARCHIVED = """
from ts.torch_handler.base_handler import BaseHandler

class Digits(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def preprocess(self, data):
        return [row.get("data") or row.get("body") for row in data]

    def inference(self, data):
        return data

    def postprocess(self, data):
        self.context.metrics.add_counter("DigitsSeen", len(data))
        return data
"""


def archive(folder: Path) -> dict[str, object]:
    """The table of an archive."""
    model = {"modelName": "digits", "modelVersion": "1", "handler": "digits.py"}
    with ZipFile(folder / "digits.mar", "w") as packed:
        packed.writestr("MAR-INF/MANIFEST.json", json.dumps({"createdOn": "", "runtime": "python", "model": model}))
        packed.writestr("digits.py", ARCHIVED)
    return {"source": str(folder / "digits.mar"), "options": {"metrics_log": True}}


def torchserve_lines(port: int) -> list[str]:
    """What the worker shows under TorchServe's names."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        page = answer.read().decode().splitlines()
    return [line for line in page if line.startswith(("DigitsSeen", "HandlerTime", "PredictionTime"))]


def lines(port: int) -> list[str]:
    """What the worker shows of the handler's own metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        page = answer.read().decode().splitlines()
    return [line for line in page if line.startswith(("penstock_model_items", "penstock_model_sizes", "penstock_model_words"))]


def test_what_a_handler_counts_is_on_the_workers_page_and_goes_on_growing_when_its_child_is_replaced(
    fresh_redis: str, tmp_path: Path
) -> None:
    port, ours = free_port(), 'model="measured",version="1"'
    jobs, digits = JobClient(fresh_redis, MODEL), JobClient(fresh_redis, "digits")
    models = {**TABLE, "digits": archive(tmp_path)}
    asked = {"PENSTOCK_TORCHSERVE__METRICS": "true"}
    with WorkerProcess(fresh_redis, tmp_path / "w", models, asked, metrics_port=port) as worker:
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
        # An archive's own metrics are there under TorchServe's names, too, and as lines of its log.
        for _ in range(2):
            digits.await_final(digits.submit(7))
        labels = f'{{Hostname="{socket.gethostname()}",Level="Model",ModelName="digits"}}'
        # HandlerTime and PredictionTime stand on the gateways' pages, for every model.
        assert torchserve_lines(port) == [f"DigitsSeen{labels} 2.0"]
        assert worker.log.read_text().count("DigitsSeen.count:1|#ModelName:digits,Level:Model|#hostname:") == 2
        # The registry says how busy the machine is.
        [announced] = jobs.store.workers()
        assert announced.machine is not None
        assert announced.machine.memory_total_bytes == psutil.virtual_memory().total
    jobs.close()
    digits.close()
