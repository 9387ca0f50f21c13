"""What a registration makes of request, archive and settings: the request stands over the archive, the archive over these.

The parameters of a request are read as TorchServe's own server reads them; ours refuses some that it lets through.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.extensions.torchserve.archives.contents import ArchiveContents
from penstock.extensions.torchserve.archives.manifest import ArchiveManifest
from penstock.extensions.torchserve.gateway.errors import TorchServeError
from penstock.extensions.torchserve.management.registering import (
    Page,
    RegisterWish,
    Registration,
    ScaleWish,
    is_customized,
    page_of,
    register_wish,
    registration,
    scale_wish,
)
from penstock.extensions.torchserve.settings.table import TorchServeSettings

URL = "m.mar"


def archive(**config: Any) -> ArchiveContents:
    return ArchiveContents(ArchiveManifest(name="packed", version="2.1", handler="h.py"), config)


def registered(wish: RegisterWish, found: ArchiveContents | None, **options: Any) -> Registration:
    return registration(wish, wish.url, found, TorchServeSettings(**options), is_remote=wish.url.startswith("http"))


def test_an_archive_that_says_nothing_has_what_torchserve_would_give_it() -> None:
    found = registered(RegisterWish(URL), archive())
    assert (found.model, found.version, found.workers, found.startup_s) == ("packed", "2.1", 0, 120.0)
    assert found.table == {
        "source": URL,
        "slots": 0,
        "max_batch_size": 1,
        "max_wait_s": 0.1,
        "max_run_s": 120.0,
        "load_timeout_s": 120.0,
        "max_queue_depth": 100,
    }


def test_the_archive_stands_over_the_settings_and_the_request_over_both() -> None:
    packed = archive(batchSize=4, maxBatchDelay=20, minWorkers=2, responseTimeout=9, startupTimeout=8, jobQueueSize=7)
    by_archive = registered(RegisterWish(URL), packed, default_workers=5, default_response_timeout_s=1.0).table
    names = ("slots", "max_batch_size", "max_wait_s", "max_run_s", "load_timeout_s", "max_queue_depth")
    assert [by_archive[name] for name in names] == [2, 4, 0.02, 9, 8, 7]
    wish = register_wish(
        {
            "url": URL,
            "model_name": "mine",
            "batch_size": 16,
            "max_batch_delay": 0,
            "initial_workers": 3,
            "response_timeout": 60,
            "startup_timeout": 30,
        }
    )
    by_request = registered(wish, packed)
    assert [by_request.table[name] for name in names] == [3, 16, 0.0, 60.0, 30.0, 7]
    assert by_request.model == "mine"


def test_a_handler_that_the_request_names_stands_over_that_of_the_archive() -> None:
    assert registered(RegisterWish(URL, handler="image_classifier"), archive()).table["options"] == {
        "handler": "image_classifier"
    }


def test_what_an_archive_asks_for_and_nobody_can_give_is_refused() -> None:
    with pytest.raises(TorchServeError) as refused:
        registered(RegisterWish(URL), archive(parallelType="pp"))
    assert (refused.value.status, refused.value.name) == (400, "InvalidModelException")
    assert "parallelType" in refused.value.message


def test_a_url_is_noted_so_that_a_description_shows_it() -> None:
    wish = RegisterWish("http://h/m.mar")
    assert registered(wish, archive()).table["registered_from"] == "http://h/m.mar"
    assert "registered_from" not in registered(RegisterWish(URL), archive()).table


def test_the_query_of_a_url_is_not_kept_because_it_may_hold_a_key() -> None:
    wish = RegisterWish("https://bucket/m.mar?X-Amz-Signature=secret")
    assert registered(wish, archive()).table["registered_from"] == "https://bucket/m.mar"


def test_code_and_files_of_our_own_are_named_by_their_file() -> None:
    found = registered(RegisterWish("square.onnx", table={"slots": 1}), None)
    assert (found.model, found.version, found.done) == (
        "square",
        "1.0",
        'Model "square" Version: 1.0 registered with 1 initial workers',
    )
    assert registered(RegisterWish("sub/square.py:Square"), None).model == "square"
    with pytest.raises(TorchServeError, match="handler is for archives"):
        registered(RegisterWish("square.py", handler="h"), None)


@pytest.mark.parametrize("name", ["a b", "a/b", "ü", "-a", "a" * 65, "."])
def test_a_name_that_cannot_stand_in_a_path_is_refused(name: str) -> None:
    with pytest.raises(TorchServeError) as refused:
        registered(RegisterWish(URL, name), archive())
    assert refused.value.status == 400


def test_what_is_not_given_is_left_to_the_archive() -> None:
    assert register_wish({"url": "m.mar"}) == RegisterWish("m.mar")


def test_texts_of_a_query_and_values_of_json_mean_the_same() -> None:
    query = {"url": "m.mar", "batch_size": "4", "max_batch_delay": "50", "initial_workers": "2", "synchronous": "FALSE"}
    body = {"url": "m.mar", "batch_size": 4, "max_batch_delay": 50.0, "initial_workers": 2, "synchronous": False}
    found = register_wish(query)
    assert found == register_wish(body)
    assert found == RegisterWish("m.mar", table={"slots": 2, "max_batch_size": 4, "max_wait_s": 0.05}, synchronous=False)


@pytest.mark.parametrize("bad", ["abc", "", "1.5", 1.5, True, None, [1], "9" * 5_000])
def test_an_integer_that_cannot_be_read_counts_as_not_given(bad: Any) -> None:
    assert register_wish({"url": "m.mar", "initial_workers": bad, "batch_size": bad}) == RegisterWish("m.mar")
    assert scale_wish({"min_worker": bad}) == ScaleWish()


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        ({}, 400, "Parameter url is required."),
        ({"url": ""}, 404, "empty url"),
        ({"url": "m.mar", "runtime": "z"}, 400, "Invalid RuntimeType value: z"),
        ({"url": "m.mar", "runtime": "LSP"}, 400, "Invalid RuntimeType value: LSP"),
        ({"url": "m.mar", "initial_workers": "-1"}, 400, "initial_workers is -1; it can be 0 to 1024."),
        ({"url": "m.mar", "batch_size": -3}, 400, "batch_size is -3; it can be 1 to 1024."),
        ({"url": "m.mar", "batch_size": 0}, 400, "batch_size is 0; it can be 1 to 1024."),
        ({"url": "m.mar", "response_timeout": 0}, 400, "response_timeout is 0; it can be 1 to 86400000."),
        ({"url": ["m.mar"]}, 400, "Parameter url must be a text."),
        ({"url": "m\x00.mar"}, 400, "Parameter url must be a text."),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], status: int, message: str) -> None:
    with pytest.raises(TorchServeError) as refused:
        register_wish(given)
    assert (refused.value.status, refused.value.message) == (status, message)


def test_scaling_takes_one_worker_unless_told_and_as_many_at_most_as_at_least() -> None:
    assert scale_wish({}) == ScaleWish(1, 1)
    assert scale_wish({"min_worker": "3"}) == ScaleWish(3, 3)
    assert scale_wish({"min_worker": "0", "max_worker": "2", "synchronous": "true"}) == ScaleWish(0, 2, synchronous=True)
    # The batch settings may be changed along with it.
    assert scale_wish({"batch_size": "8", "max_batch_delay": "0"}).policy == {"max_batch_size": 8, "max_wait_s": 0.0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_worker": "2", "max_worker": "1"}, "max_worker cannot be less than min_worker."),
        ({"min_worker": "-1"}, "min_worker is -1; it can be 0 to 1024."),
        ({"max_worker": "-1"}, "max_worker is -1; it can be 0 to 1024."),
    ],
)
def test_a_scale_that_cannot_be_meant_is_a_bad_request(given: dict[str, str], message: str) -> None:
    with pytest.raises(TorchServeError) as refused:
        scale_wish(given)
    assert (refused.value.status, refused.value.name) == (400, "BadRequestException")
    assert refused.value.message == message


@pytest.mark.parametrize(
    ("given", "page"),
    [
        ({}, Page(100, 0)),
        ({"limit": "2", "next_page_token": "4"}, Page(2, 4)),
        ({"limit": "0"}, Page(0, 0)),
        ({"limit": "-1", "next_page_token": "-5"}, Page(100, 0)),
        ({"limit": "1000"}, Page(100, 0)),
        ({"limit": "x", "next_page_token": "y"}, Page(100, 0)),
    ],
)
def test_a_page_that_cannot_be_is_the_usual_one(given: dict[str, str], page: Page) -> None:
    assert page_of(given) == page


@pytest.mark.parametrize(("text", "meant"), [("true", True), ("True", True), ("1", False), ("", False)])
def test_a_flag_is_true_in_any_case(text: str, meant: bool) -> None:
    assert is_customized({"customized": text}) is meant
