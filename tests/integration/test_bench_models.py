from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import GpuRun
from benchmarks.gpu.memory import run_out_of_memory
from benchmarks.gpu.results import GpuResults, resume
from benchmarks.models.__main__ import ModelsBench, TurnLengths
from benchmarks.models.rows import Row
from benchmarks.models.stack import model_stack

pytest.importorskip("onnxruntime")
# Like memory_hog.py on a GPU, this handler has room for 13 items.
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
    bench = ModelsBench(TurnLengths(loop_s=0.6, http_s=0.3, http_batches=2, turns=1), print)
    with model_stack(tmp_path, rows) as stack:
        roots = list(stack._roots)
        bench.run(stack, rows)
        assert stack._roots == roots, "a row that failed left its processes on the bill of the next"
    [why] = bench.results.failed.values()
    assert "fp16" in why
    [found] = bench.results.rows
    assert found["items_per_s"] > 0
    assert found["inference_only_items_per_s"] > found["in_process_items_per_s"] > 0
    assert found["p99_ms"] >= found["p50_ms"] > 0


def test_a_further_call_for_a_gpu_measures_what_the_one_before_had_no_time_for(tmp_path: Path) -> None:
    """`make gpu` works without a GPU too: it measures rows on the CPU, through real stacks, into one file."""
    first, second = Row("digits", "onnx", 4), Row("digits", "onnx", 2)
    out, every = tmp_path / "gpu.json", [first, second]

    def call(rows: Sequence[Row]) -> GpuResults:
        folder = tmp_path / f"call-{len(rows)}"
        folder.mkdir()
        results = resume(out, GpuResults(sources="same"))
        GpuRun(results, out, every, ["rows"], quick=True, ends_at=math.inf, say=print).run(folder, rows)
        return results

    before = call([first])
    assert ([row["name"] for row in before.rows], before.not_run) == ([first.name], [second.name])
    after = call(every)
    assert after.rows[0] == before.rows[0], "it was measured again"
    assert [row["name"] for row in after.rows] == [first.name, second.name]
    assert after.rows[1]["items_per_s"] > 0
    assert after.rows[1]["device_busy_share"] is None
    assert (after.failed, after.skipped, after.not_run) == ({}, {}, [])
    assert resume(out, GpuResults(sources="same")).rows == after.rows


def test_a_row_that_breaks_in_a_way_nobody_thought_of_does_not_lose_the_others(tmp_path: Path) -> None:
    """An error other than `PenstockError` once ended the run, and the rows measured until then were lost."""

    @contextmanager
    def broken(_devices: Sequence[str]) -> Iterator[dict[str, float | None]]:
        raise RuntimeError("the driver is gone")
        yield {}

    bench = ModelsBench(TurnLengths(loop_s=0.1, http_s=0.1, http_batches=1, turns=1), print, watch=broken)
    with model_stack(tmp_path, [Row("digits", "onnx", 4)]) as stack:
        bench.run(stack, [Row("digits", "onnx", 4)])
    [why] = bench.results.failed.values()
    assert why == "this is a bug: RuntimeError: the driver is gone"


def test_the_scene_in_which_a_gpu_runs_out_of_memory_ends_with_every_job_done(tmp_path: Path) -> None:
    (tmp_path / "hog.py").write_text(HOG)
    found = run_out_of_memory(tmp_path, source=tmp_path / "hog.py", device="cpu")
    assert found["recovered"], found
    assert (found["jobs"], found["succeeded"], found["child_restarts"]) == (512, 512, 0)
