from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.handlers.contract import Context
from penstock.handlers.runtimes.onnx.runtime import OnnxRuntime, open_model
from penstock.handlers.runtimes.parallel_calls import ParallelCalls, calls_at_once
from penstock.model_spec import RuntimeOptions
from tests.onnx_models import perceptron, saved

pytest.importorskip("onnxruntime")


def opened(folder: Path, *, threads: int = 2, **options: Any) -> OnnxRuntime:
    context = Context("m", threads=threads, folder=folder, runtime=RuntimeOptions(**options))
    return open_model(saved(perceptron(), folder / "model.onnx"), context)


def feeds(*rows: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(1)
    return [{"x": draw.standard_normal((count, 64)).astype(np.float32)} for count in rows]


def test_two_calls_are_under_way_at_once() -> None:
    both = threading.Barrier(2, timeout=30)
    beside = ParallelCalls(lambda value: (both.wait(), value)[1], at_once=2)
    assert list(beside.run(["a", "b", "c", "d"])) == ["a", "b", "c", "d"]


def test_a_call_that_fails_fails_the_batch() -> None:
    beside = ParallelCalls(lambda value: 1 // value, at_once=2)
    with pytest.raises(ZeroDivisionError):
        list(beside.run([1, 0, 1]))


def test_outputs_come_in_the_order_of_the_feeds_and_as_large(tmp_path: Path) -> None:
    runtime = opened(tmp_path, batch_buckets=(4, 8))
    assert runtime.open_parallel() == 2
    given = feeds(3, 8, 1, 5)
    for feed, found in zip(given, runtime.run_parallel(given), strict=True):
        np.testing.assert_allclose(found["y"], runtime.run(feed)["y"], rtol=1e-5, atol=1e-6)
        assert len(found["y"]) == len(feed["x"])


def test_one_thread_has_nothing_to_share_and_opens_no_second_session(tmp_path: Path) -> None:
    runtime = opened(tmp_path, threads=1)
    assert runtime.open_parallel() == 1
    assert len(list(runtime.run_parallel(feeds(2, 2)))) == 2


@pytest.mark.parametrize("option", ["intra_op_num_threads", "execution_mode", "session.intra_op_thread_affinities"])
def test_who_lays_out_the_threads_keeps_them_and_a_device_has_none(option: str) -> None:
    assert calls_at_once({}, provider="cpu", threads=4) == 4
    assert calls_at_once({option: "1"}, provider="cpu", threads=4) == 1
    assert calls_at_once({}, provider="cuda", threads=4) == 1


def test_while_a_profile_records_every_call_goes_through_it(tmp_path: Path) -> None:
    runtime = opened(tmp_path)
    runtime.open_parallel()
    profile = runtime.profile(tmp_path)
    assert profile is not None
    profile.start()
    list(runtime.run_parallel(feeds(2, 3)))
    profile.stop()
    profile.save()
    (operators,) = [
        line.split() for line in (tmp_path / "operators.txt").read_text().splitlines() if "Gemm" in line or "MatMul" in line
    ][:1]
    assert int(operators[1]) % 2 == 0
    assert len(list(runtime.run_parallel(feeds(2, 3)))) == 2
