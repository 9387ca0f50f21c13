import pytest

from penstock.broker.store import ops
from penstock.broker.store.registry import REGISTRY
from penstock.broker.store.run_ops import RUNS_KEY
from penstock.broker.stores.model_queues import ModelQueues, StoredQueues
from penstock.broker.stores.plan import StorePlan, of_store, queue_in
from penstock.errors import StoreUnavailable
from penstock.extensions.celery_clients.ops import DOOR

PLAN = StorePlan({"b": ("vision-*", "ocr:1"), "c": ("*",)})


@pytest.mark.parametrize("queue", ["ocr", "ocr:12", "a.b_c-d", "9"])
def test_the_key_of_a_queue_names_it(queue: str) -> None:
    assert queue_in(f"{ops.prefix(queue)}job:01") == queue


@pytest.mark.parametrize("key", ["ps:store", f"{REGISTRY}models", RUNS_KEY, ops.prefix(DOOR), "ps:ping", b"ps:{ocr}:", 7])
def test_other_keys_lie_in_the_main_store(key: object) -> None:
    assert queue_in(key) == ""
    assert PLAN.store_of(queue_in(key)) == "main"


def test_the_first_store_of_which_a_pattern_matches_holds_a_new_queue() -> None:
    assert [PLAN.store_of(queue) for queue in ("vision-1", "ocr:1", "ocr")] == ["b", "b", "c"]
    assert StorePlan({"b": ("x",)}).store_of("y") == "main"


def test_what_the_registry_says_stands_above_the_settings() -> None:
    plan = PLAN.following({"vision-1": StoredQueues(ModelQueues(stores={0: "main"}))})
    assert plan.store_of("vision-1") == "main"
    assert plan.knows("vision-1")
    assert plan.misplaced() == {"vision-1": ("main", "b")}


def test_a_queue_that_has_jobs_in_the_main_store_stays_there() -> None:
    assert PLAN.placed("ocr", is_in_main=True).stores == {0: "main"}
    assert PLAN.placed("ocr:1", is_in_main=False).stores == {1: "b"}


def test_a_model_that_was_moved_gets_more_queues_where_it_is() -> None:
    plan = PLAN.following({"ocr": StoredQueues(ModelQueues(first=1, stores={0: "c", 1: "main"}))})
    assert plan.placed("ocr:2", is_in_main=False).stores[2] == "main"
    assert plan.homes_of("ocr") == ("main",)
    assert plan.misplaced() == {"ocr": ("main", "c")}


def test_an_error_keeps_its_kind_and_names_the_store() -> None:
    named = of_store(StoreUnavailable("Redis cannot be reached", hint="look"), "b")
    assert (named.message, named.hint) == ("store 'b': Redis cannot be reached", "look")
