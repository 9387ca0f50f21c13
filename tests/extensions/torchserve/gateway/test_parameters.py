"""Parameters of TorchServe's management, as its own server reads them, and where ours refuses what that one lets through."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.extensions.torchserve.gateway.errors import TorchServeError
from penstock.extensions.torchserve.management.parameters import (
    BatchingWish,
    Page,
    RegisterWish,
    ScaleWish,
    batch_policy,
    is_customized,
    page_of,
    register_wish,
    scale_wish,
)


def test_what_is_not_given_is_left_to_the_archive() -> None:
    assert register_wish({"url": "m.mar"}) == RegisterWish("m.mar")


def test_texts_of_a_query_and_values_of_json_mean_the_same() -> None:
    query = {"url": "m.mar", "batch_size": "4", "max_batch_delay": "50", "initial_workers": "2", "synchronous": "FALSE"}
    body = {"url": "m.mar", "batch_size": 4, "max_batch_delay": 50.0, "initial_workers": 2, "synchronous": False}
    found = register_wish(query)
    assert found == register_wish(body)
    assert found == RegisterWish("m.mar", batching=BatchingWish(4, 50), initial_workers=2, synchronous=False)


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
    assert batch_policy(scale_wish({"batch_size": "8", "max_batch_delay": "0"}).batching) == {
        "max_batch_size": 8,
        "max_wait_s": 0.0,
    }
    assert batch_policy(BatchingWish()) == {}


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
