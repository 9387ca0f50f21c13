from __future__ import annotations

from penstock.shard import by_cost, row_costs


def test_rows_run_from_the_cheapest_up() -> None:
    rows = ["three", "a", "to"]
    assert row_costs(rows) == [5, 1, 2]
    assert list(by_cost(row_costs(rows))) == [1, 2, 0]
    assert row_costs([{"text": "abc", "n": 5, "tags": ["x"]}, 7, b"12"]) == [4, 0, 2]
    assert row_costs([7, None]) == [0, 0]


def test_rows_of_one_cost_stay_in_order() -> None:
    assert by_cost([3, 3, 3]) == range(3)
