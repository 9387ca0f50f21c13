from penstock.broker.stores.model_queues import ModelQueues


def test_a_model_has_one_queue_until_something_changes() -> None:
    assert ModelQueues().numbers == (0,)


def test_a_move_closes_what_is_open_and_opens_a_number_that_was_never_used() -> None:
    moved = ModelQueues().placed({0: "main"}).moved("b", now=7.0)
    assert (moved.open, moved.closed, moved.stores) == ((1,), {0: 7.0}, {0: "main", 1: "b"})
    back = moved.moved("main", now=9.0)
    assert (back.open, back.closed, back.stores[2]) == ((2,), {0: 7.0, 1: 9.0}, "main")


def test_a_move_repeated_changes_nothing() -> None:
    moved = ModelQueues().placed({0: "main"}).moved("b", now=7.0)
    assert moved.moved("b", now=8.0) == moved


def test_a_move_keeps_the_queues_that_are_there_already() -> None:
    spread = ModelQueues(open=(0, 1, 2), next=3).placed({0: "main", 1: "b", 2: "main"})
    moved = spread.moved("b", now=5.0)
    assert (moved.open, moved.closed, moved.next) == ((1, 3, 4), {0: 5.0, 2: 5.0}, 5)


def test_a_queue_of_which_nothing_is_left_is_forgotten_and_its_number_is_not_used_again() -> None:
    moved = ModelQueues().placed({0: "main"}).moved("b", now=7.0).without(0)
    assert moved.numbers == (1,)
    assert moved.stores == {1: "b"}
    assert moved.moved("main", now=9.0).open == (2,)


def test_a_smaller_count_closes_the_last_queues_and_a_larger_one_opens_new_numbers() -> None:
    three = ModelQueues(open=(0, 1, 2), next=3)
    one = three.resized(1, now=4.0)
    assert (one.open, one.closed) == ((0,), {1: 4.0, 2: 4.0})
    assert one.resized(2, now=6.0).open == (0, 3)


def test_a_placed_queue_keeps_its_store() -> None:
    assert ModelQueues(stores={0: "b"}).placed({0: "main"}).stores == {0: "b"}


def test_homes_are_by_the_names_of_queues() -> None:
    moved = ModelQueues().placed({0: "main"}).moved("b", now=7.0)
    assert moved.homes("ocr") == {"ocr": "main", "ocr:1": "b"}
