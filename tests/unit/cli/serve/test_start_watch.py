from __future__ import annotations

from penstock.cli.serve.start_watch import LoadFailures, farewell
from penstock.model_spec import SlotInfo, WorkerInfo


def worker(*slots: SlotInfo, name: str = "w") -> list[WorkerInfo]:
    return [WorkerInfo(name, "host", 1, 0.0, slots=slots)]


def failed(restarts: int, error: str = "no weights", model: str = "m") -> SlotInfo:
    return SlotInfo(model, "1", "failed", error=error, restarts=restarts)


def test_the_second_failure_with_the_same_error_is_the_last() -> None:
    watch = LoadFailures(["m"])
    assert watch.hopeless(worker(SlotInfo("m", "1", "loading"))) == {}
    assert watch.hopeless(worker(failed(0))) == {}
    # The first process has ended, and the second one is loading; the slot still shows the first error.
    assert watch.hopeless(worker(failed(1))) == {}
    assert watch.hopeless(worker(failed(2))) == {"m": "no weights"}


def test_a_first_failure_that_nobody_saw_is_not_counted() -> None:
    watch = LoadFailures(["m"])
    assert watch.hopeless(worker(failed(2))) == {}
    assert watch.hopeless(worker(failed(2))) == {}
    assert watch.hopeless(worker(failed(3))) == {"m": "no weights"}


def test_another_error_or_a_load_in_between_begins_the_count_anew() -> None:
    watch = LoadFailures(["m"])
    watch.hopeless(worker(failed(1)))
    assert watch.hopeless(worker(failed(2, "the port is taken"))) == {}
    assert watch.hopeless(worker(failed(3, "the port is taken"))) == {"m": "the port is taken"}
    assert watch.hopeless(worker(SlotInfo("m", "1", "ready", restarts=3))) == {}
    assert watch.hopeless(worker(failed(4, "the port is taken"))) == {}


def test_one_model_that_may_still_load_keeps_the_start_going() -> None:
    watch = LoadFailures(["m", "other"])
    for restarts in (1, 2, 3):
        assert watch.hopeless(worker(failed(restarts), SlotInfo("other", "1", "loading"))) == {}
    assert watch.hopeless(worker(failed(4))) == {}
    for restarts in (1, 2):
        found = watch.hopeless(worker(failed(5), failed(restarts, "boom", "other")))
    assert found == {"m": "no weights", "other": "boom"}


def test_a_model_that_cannot_be_loaded_is_given_up_once_all_others_are_served() -> None:
    # Regression: one archive that failed kept `penstock torchserve` from its ready line, and runs from their runner.
    watch = LoadFailures(["m", "other"])
    for restarts in (1, 2, 3):
        assert watch.given_up(worker(failed(restarts), SlotInfo("other", "1", "loading"))) is None
    assert watch.given_up(worker(failed(4), SlotInfo("other", "1", "ready"))) == {"m": "no weights"}
    assert watch.given_up(worker(SlotInfo("m", "1", "loading", restarts=5), SlotInfo("other", "1", "ready"))) is None
    assert watch.given_up(worker(SlotInfo("m", "1", "ready"), SlotInfo("other", "1", "ready"))) == {}


def test_models_of_other_workers_on_the_same_store_do_not_count() -> None:
    watch = LoadFailures(["m"])
    for restarts in (1, 2):
        found = watch.hopeless(worker(failed(restarts), SlotInfo("foreign", "1", "ready")))
    assert found == {"m": "no weights"}


def test_the_first_ctrl_c_is_answered_with_what_still_runs() -> None:
    assert farewell(0) == "ending; no job is running"
    assert farewell(1).startswith("finishing 1 job;")
    assert farewell(None).startswith("finishing running jobs;")
