"""A move as pure states: what follows what, wherever it was broken off."""

import pytest

from penstock.broker.stores.model_queues import ModelQueues, MoveStep
from penstock.model_spec import ModelInfo

HERE = ModelQueues().placed(0, "main")


def taken(queues: ModelQueues, store: str, partitions: int = 1, held: int = 1) -> ModelQueues:
    """The queues after the next step."""
    match queues.step(store, partitions):
        case MoveStep.PREPARE:
            return queues.prepared(store, partitions, held)
        case MoveStep.SWITCH:
            return queues.switched(partitions, 7.0)
        case MoveStep.DRAIN:
            return queues


def moved(queues: ModelQueues, store: str, partitions: int = 1, held: int = 1) -> ModelQueues:
    while queues.step(store, partitions) is not MoveStep.DRAIN:
        queues = taken(queues, store, partitions, held)
    return queues


def test_a_move_prepares_switches_and_drains() -> None:
    queues, steps = HERE, []
    for _ in range(3):
        steps.append(queues.step("b", 1))
        queues = taken(queues, "b")
    assert steps == [MoveStep.PREPARE, MoveStep.SWITCH, MoveStep.DRAIN]
    assert queues == ModelQueues(first=1, stores={0: "main", 1: "b"}, closed={0: 7.0})


def test_new_jobs_go_to_the_old_store_until_the_switch() -> None:
    prepared = taken(HERE, "b")
    assert (prepared.first, prepared.stores[1]) == (0, "b")
    assert prepared.shown(ModelInfo("ocr")).held == 2


def test_a_model_that_is_there_already_does_not_move() -> None:
    assert HERE.step("main", 1) is MoveStep.DRAIN
    assert HERE.leaving == []


def test_a_model_moves_back_into_a_queue_that_was_never_used() -> None:
    back = moved(moved(HERE, "b"), "main")
    assert (back.first, back.stores, back.leaving) == (2, {0: "main", 1: "b", 2: "main"}, [0, 1])


@pytest.mark.parametrize("steps", [1, 2])
def test_another_move_may_follow_a_broken_one(steps: int) -> None:
    queues = HERE
    for _ in range(steps):
        queues = taken(queues, "b")
    there = moved(queues, "c")
    assert there.stores[there.first] == "c"
    assert set(there.leaving) == set(range(there.first)) == set(there.closed)


def test_all_partitions_move_and_numbers_that_may_have_jobs_are_not_used_again() -> None:
    spread = ModelQueues().placed(0, "main").placed(1, "b")
    there = moved(spread, "b", partitions=2, held=4)
    assert (there.first, [there.stores[number] for number in (4, 5)]) == (4, ["b", "b"])
    assert there.leaving == [0, 1]


def test_the_queues_of_before_are_closed_first_and_the_time_of_it_stays() -> None:
    assert list(taken(HERE, "b").closing(1)) == [0]
    again = moved(HERE, "b").prepared("c", 1, 2)
    assert list(again.closing(1)) == [0, 1]
    assert again.switched(1, 9.0).closed == {0: 7.0, 1: 9.0}


def test_queues_of_which_nothing_is_left_are_forgotten_from_the_first_on() -> None:
    twice = moved(moved(HERE, "b"), "c")
    assert twice.forgotten({1}) == twice
    gone = twice.forgotten({0, 1})
    assert (gone.since, gone.stores, gone.closed) == (2, {2: "c"}, {})
    assert gone.next == 3


def test_a_queue_stays_where_it_was_placed() -> None:
    assert HERE.placed(0, "b") == HERE


def test_homes_are_by_the_names_of_queues() -> None:
    assert moved(HERE, "b").homes("ocr") == {"ocr": "main", "ocr:1": "b"}


def test_a_model_is_shown_with_the_numbers_of_its_queues() -> None:
    info = moved(HERE, "b").shown(ModelInfo("ocr"))
    assert (info.first, info.since, info.held) == (1, 0, 2)
