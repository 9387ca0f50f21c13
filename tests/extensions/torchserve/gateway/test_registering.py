"""What a registration makes of request, archive and settings: the request stands over the archive, the archive over these."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.extensions.torchserve.archives.contents import ArchiveContents
from penstock.extensions.torchserve.archives.manifest import ArchiveManifest
from penstock.extensions.torchserve.gateway.errors import TorchServeError
from penstock.extensions.torchserve.management.parameters import BatchingWish, RegisterWish
from penstock.extensions.torchserve.management.registering import Registration, registration
from penstock.gateway.options import TorchServeOptions

URL = "m.mar"


def archive(**config: Any) -> ArchiveContents:
    return ArchiveContents(ArchiveManifest(name="packed", version="2.1", handler="h.py"), config)


def registered(wish: RegisterWish, found: ArchiveContents | None, **options: Any) -> Registration:
    return registration(wish, wish.url, found, TorchServeOptions(**options), is_remote=wish.url.startswith("http"))


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
    wish = RegisterWish(URL, "mine", "", BatchingWish(16, 0), 3, True, 60, 30)
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
    found = registered(RegisterWish("square.onnx", initial_workers=1), None)
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
