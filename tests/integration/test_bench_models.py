from __future__ import annotations

from pathlib import Path

import pytest

from penstock.benchmarks.model_rows import Row
from penstock.benchmarks.model_stack import model_stack
from penstock.benchmarks.models import Bench, Lengths

pytest.importorskip("onnxruntime")


def test_a_row_is_measured_over_http_and_in_a_loop_beside_it(tmp_path: Path) -> None:
    row = Row("digits", "onnx", 4)
    bench = Bench(Lengths(loop_s=0.1, http_s=0.3, http_batches=2, turns=1), print)
    with model_stack(tmp_path, [row]) as stack:
        bench.run(stack, [row])
    assert not bench.results.failed
    [found] = bench.results.rows
    assert found["items_per_s"] > 0
    assert found["inference_only_items_per_s"] > found["in_process_items_per_s"] > 0
    assert found["p99_ms"] >= found["p50_ms"] > 0


def test_a_row_that_cannot_be_loaded_leaves_its_reason(tmp_path: Path) -> None:
    rows = [Row("digits", "onnx", 4, precision="fp16")]
    bench = Bench(Lengths(turns=1), print)
    with model_stack(tmp_path, rows) as stack:
        bench.run(stack, rows)
    [why] = bench.results.failed.values()
    assert "fp16" in why
