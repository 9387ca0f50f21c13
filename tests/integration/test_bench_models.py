from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import memory
from benchmarks.gpu.__main__ import GpuRun
from benchmarks.gpu.memory import run_out_of_memory
from benchmarks.gpu.results import GpuResults, resume
from benchmarks.models.__main__ import ModelsBench, TurnLengths
from benchmarks.models.rows import Row
from benchmarks.models.stack import ModelLoops, ModelStack, model_stack

pytest.importorskip("onnxruntime")
# Like memory_hog.py on a GPU, this handler has room for 13 items. It is so slow that more of them wait even if the machine is
# busy.
HOG = """
import time

from penstock import Handler


class Hog(Handler):
    def inference(self, batch):
        if len(batch) > 13:
            raise MemoryError("13 fit")
        time.sleep(0.15)
        return batch
"""


GOOD, BAD, LATER = Row("digits", "onnx", 4), Row("digits", "onnx", 4, precision="fp16"), Row("digits", "onnx", 2)


SHORT = TurnLengths(loop_s=0.2, http_s=0.3, http_batches=4, turns=1)


@dataclass(frozen=True)
class Scene:
    """Two rows on one stack, of which the first cannot be loaded. `roots`: the stack's processes before and after."""

    bench: ModelsBench
    roots: tuple[list[int], list[int]]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    bench = ModelsBench(SHORT, print)
    with model_stack(tmp_path_factory.mktemp("rows"), [BAD, GOOD]) as stack:
        before = list(stack._roots)
        bench.run(stack, [BAD, GOOD])
        return Scene(bench, (before, list(stack._roots)))


def test_rows_are_measured_over_http_and_in_a_loop_beside_it_and_one_that_cannot_be_loaded_leaves_its_reason(
    scene: Scene,
) -> None:
    assert scene.roots[0] == scene.roots[1], "a row that failed left its processes on the bill of the next"
    assert "fp16" in scene.bench.results.failed[BAD.name]
    [found] = scene.bench.results.rows
    assert found["items_per_s"] > 0
    assert found["inference_only_items_per_s"] > found["in_process_items_per_s"] > 0
    assert found["p99_ms"] >= found["p50_ms"] > 0


def test_a_further_call_for_a_gpu_measures_what_the_one_before_had_no_time_for(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make gpu` works without a GPU too: it measures rows on the CPU, through real stacks, into one file."""
    monkeypatch.setattr(gpu, "QUICK", SHORT)
    out, every = tmp_path / "gpu.json", [GOOD, LATER]
    GpuResults(sources="same", rows=[dict(row) for row in scene.bench.results.rows]).write(out)

    def call(*, ends_at: float) -> GpuResults:
        results = resume(out, GpuResults(sources="same"))
        GpuRun(results, out, every, ["rows"], quick=True, ends_at=ends_at, say=print).run(tmp_path, every)
        return results

    before = call(ends_at=-math.inf)
    assert ([row["name"] for row in before.rows], before.not_run) == ([GOOD.name], [LATER.name])
    after = call(ends_at=math.inf)
    assert after.rows[0] == before.rows[0], "it was measured again"
    assert [row["name"] for row in after.rows] == [GOOD.name, LATER.name]
    assert after.rows[1]["items_per_s"] > 0
    assert after.rows[1]["device_busy_share"] is None
    assert (after.failed, after.skipped, after.not_run) == ({}, {}, [])
    assert resume(out, GpuResults(sources="same")).rows == after.rows


class BrokenStack:
    """A stack on which no row can start, for a reason that nobody thought of."""

    @contextmanager
    def row(self, _row: Row) -> Iterator[ModelLoops]:
        raise RuntimeError("the driver is gone")
        yield


def test_a_row_that_breaks_in_a_way_nobody_thought_of_does_not_lose_the_others(scene: Scene) -> None:
    """An error other than `PenstockError` once ended the run, and the rows measured until then were lost."""
    rows = list(scene.bench.results.rows)
    scene.bench.run(cast("ModelStack", BrokenStack()), [LATER])
    assert scene.bench.results.failed[LATER.name] == "this is a bug: RuntimeError: the driver is gone"
    assert scene.bench.results.rows == rows


def test_the_scene_in_which_a_gpu_runs_out_of_memory_ends_with_every_job_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_JOBS", 96)
    (tmp_path / "hog.py").write_text(HOG)
    found = run_out_of_memory(tmp_path, source=tmp_path / "hog.py", device="cpu")
    assert found["recovered"], found
    assert (found["jobs"], found["succeeded"], found["child_restarts"]) == (192, 192, 0)
