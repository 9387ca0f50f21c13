from __future__ import annotations

from pathlib import Path

import pytest

from penstock.benchmarks.gpu_memory import run_out_of_memory
from penstock.benchmarks.model_rows import Row
from penstock.benchmarks.model_stack import model_stack
from penstock.benchmarks.models import Bench, Lengths

pytest.importorskip("onnxruntime")
# As memory_hog.py on a GPU: 13 items fit.
HOG = """
import time

from penstock import Handler


class Hog(Handler):
    def inference(self, batch):
        if len(batch) > 13:
            raise MemoryError("13 fit")
        time.sleep(0.05)
        return batch
"""


def test_rows_are_measured_over_http_and_in_a_loop_beside_it_and_one_that_cannot_be_loaded_leaves_its_reason(
    tmp_path: Path,
) -> None:
    rows = [Row("digits", "onnx", 4, precision="fp16"), Row("digits", "onnx", 4)]
    bench = Bench(Lengths(loop_s=0.6, http_s=0.3, http_batches=2, turns=1), print)
    with model_stack(tmp_path, rows) as stack:
        bench.run(stack, rows)
    [why] = bench.results.failed.values()
    assert "fp16" in why
    [found] = bench.results.rows
    assert found["items_per_s"] > 0
    assert found["inference_only_items_per_s"] > found["in_process_items_per_s"] > 0
    assert found["p99_ms"] >= found["p50_ms"] > 0


def test_the_scene_in_which_a_gpu_runs_out_of_memory_ends_with_every_job_done(tmp_path: Path) -> None:
    (tmp_path / "hog.py").write_text(HOG)
    found = run_out_of_memory(tmp_path, source=tmp_path / "hog.py", device="cpu")
    assert found["recovered"], found
    assert (found["jobs"], found["succeeded"], found["child_restarts"]) == (512, 512, 0)
