"""Into which partition a job goes, where a repeat finds its first job, and what the figures of all add up to."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.broker.backlog import Backlog
from penstock.broker.partitions import (
    all_unfinished,
    numbers_of_key,
    partition_for,
    partition_of_key,
    queues_of_model,
    share,
    total,
)
from penstock.broker.records import QueueStats, Unfinished
from penstock.job import MOST_PARTITIONS
from penstock.model_spec import ModelInfo

KEYS = [f"key-{number}" for number in range(2_000)]


def test_keys_spread_evenly_and_owners_have_their_own() -> None:
    for partitions in (2, 3, 8):
        found = Counter(partition_of_key("a", key, partitions) for key in KEYS)
        assert set(found) == set(range(partitions))
        assert max(found.values()) < 1.3 * len(KEYS) / partitions
    assert [partition_of_key("a", key, 8) for key in KEYS] != [partition_of_key("b", key, 8) for key in KEYS]


def test_a_key_moves_only_into_a_partition_that_is_new() -> None:
    for before in range(1, 8):
        for key in KEYS[:300]:
            old, new = partition_of_key("", key, before), partition_of_key("", key, before + 1)
            assert new in (old, before)


@pytest.mark.parametrize("held", [1, 2, 5, MOST_PARTITIONS])
def test_a_repeat_looks_in_every_place_that_its_key_ever_had_and_these_are_few(held: int) -> None:
    for key in KEYS[:300]:
        places = numbers_of_key(ModelInfo("m", held=held), "", key)
        assert {partition_of_key("", key, partitions) for partitions in range(1, held + 1)} == set(places)
    assert sum(len(numbers_of_key(ModelInfo("m", held=held), "", key)) for key in KEYS) / len(KEYS) < 1.0 + held**0.4


def test_of_two_partitions_the_less_full_one_gets_the_job() -> None:
    depths = {0: 90, 1: 3, 2: 50}
    found = Counter(partition_for(depths, 3, owner="", key="") for _ in range(600))
    assert found[0] == 0
    assert found[1] > found[2] > 0
    assert {partition_for({}, 2, owner="", key="") for _ in range(100)} == {0, 1}
    assert {partition_for({0: 1}, 2, owner="", key="") for _ in range(100)} == {0, 1}, "both are idle"
    assert {partition_for({0: 2}, 2, owner="", key="") for _ in range(100)} == {1}
    assert len({partition_for(depths, 3, owner="o", key="k") for _ in range(20)}) == 1


def test_a_backlog_knows_the_depth_of_each_partition_and_their_sum() -> None:
    backlog, info = Backlog(depths={0: 5, 1: 7}), ModelInfo("m", partitions=2, held=2)
    backlog.record_submit(9, 1.0, partition=1)
    assert (backlog.depth, backlog.depths) == (14, {0: 5, 1: 9})
    assert {backlog.new_job_id(info, owner="", key="").queue for _ in range(50)} == {"m"}
    assert backlog.new_job_id(ModelInfo("m"), owner="", key="k").queue == "m"


def test_queues_that_get_no_new_jobs_are_read_as_well() -> None:
    assert queues_of_model(ModelInfo("m")) == ["m"]
    assert queues_of_model(ModelInfo("m", partitions=2, held=3)) == ["m", "m:1", "m:2"]
    assert queues_of_model(ModelInfo("m", partitions=3)) == ["m", "m:1", "m:2"]


def test_shares_add_up_to_the_limit_at_least() -> None:
    assert [share(10, partitions) for partitions in (1, 2, 3, 64)] == [10, 5, 4, 1]
    assert share(0, 4) == 0, "no limit stays none"


def test_the_figures_of_a_model_are_the_sums_over_its_partitions_and_the_oldest_age() -> None:
    first = QueueStats("m", 10.0, {0: 2, 9: 1}, {0: 5.0}, 1, 2, 3, 4, 20, {"succeeded": 5}, {"retried": 1}, {"a": 3}, {"a": 1})
    second = QueueStats("m", 11.0, {0: 1}, {0: 8.0}, ended={"succeeded": 2, "failed": 1}, open={"a": 1, "b": 2}, accepted=7)
    both = total([first, second])
    assert (both.depth, both.ready, both.oldest_age_s) == (5, {0: 3, 6: 0, 9: 1}, {0: 8.0, 6: 0.0, 9: 0.0})
    assert (both.solo, both.delayed, both.leased, both.inbox, both.accepted) == (1, 2, 3, 4, 27)
    assert (both.ended, both.open) == ({"succeeded": 7, "failed": 1}, {"a": 4, "b": 2})
    assert total([first]) is first
    assert all_unfinished([Unfinished(1, 2), Unfinished(3, 0)]) == Unfinished(4, 2)
