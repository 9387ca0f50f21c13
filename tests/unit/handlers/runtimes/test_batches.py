from __future__ import annotations

import pytest

from penstock.errors import HandlerContractError, HandlerLoadError
from penstock.handlers.runtimes.batches import BatchSizes, BatchSlice, padding_ratio


def test_without_buckets_a_batch_runs_as_it_comes() -> None:
    assert BatchSizes().pieces(11) == [BatchSlice(0, 11, 11)]


@pytest.mark.parametrize(
    ("rows", "pieces"),
    [
        (1, [BatchSlice(0, 1, 1)]),
        (3, [BatchSlice(0, 3, 4)]),
        (8, [BatchSlice(0, 8, 8)]),
        (11, [BatchSlice(0, 8, 8), BatchSlice(8, 11, 4)]),
        (17, [BatchSlice(0, 8, 8), BatchSlice(8, 16, 8), BatchSlice(16, 17, 1)]),
    ],
)
def test_a_batch_is_padded_to_the_next_bucket_and_cut_at_the_largest(rows: int, pieces: list[BatchSlice]) -> None:
    assert BatchSizes().padded_to([8, 1, 4, 4]).pieces(rows) == pieces


def test_a_bounded_batch_axis_is_kept_within_its_bounds() -> None:
    sizes = BatchSizes(4, 8)
    assert sizes.pieces(3) == [BatchSlice(0, 3, 4)]
    assert sizes.pieces(9) == [BatchSlice(0, 8, 8), BatchSlice(8, 9, 4)]


@pytest.mark.parametrize(
    ("sizes", "words"), [(BatchSizes(4, 8), "4 to 8"), (BatchSizes(4), "4 or more"), (BatchSizes(2, 2), "takes 2 rows")]
)
def test_a_bucket_that_the_model_does_not_take_is_refused(sizes: BatchSizes, words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        sizes.padded_to([1, 4])


def test_an_empty_batch_is_an_error_of_the_caller() -> None:
    with pytest.raises(HandlerContractError, match="empty batch"):
        BatchSizes().pieces(0)


def test_padding_is_counted_over_all_pieces() -> None:
    assert padding_ratio([BatchSlice(0, 8, 8), BatchSlice(8, 11, 4)]) == pytest.approx(1 / 12)
    assert padding_ratio([BatchSlice(0, 3, 3)]) == 0
