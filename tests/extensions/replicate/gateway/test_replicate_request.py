"""What a caller of Replicate's protocol may write, and how its words are read."""

from __future__ import annotations

import pytest

from penstock.errors import BadRequest, InvalidInput
from penstock.extensions.replicate.gateway.request import (
    cancel_after_s,
    prediction_request,
    split_version,
    wait_s,
    wanted_events,
)
from penstock.extensions.replicate.gateway.stream import translated
from penstock.gateway.jobs.events.told import ToldEvent


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("", 0.0),
        ("wait", 30.0),
        ("wait=5", 5.0),
        ('respond-async, wait="7"', 7.0),
        ("wait=60", 30.0),
        ("waiting", 0.0),
        ("wait=x", 0),
    ],
)
def test_a_wait_is_as_long_as_the_header_says_and_never_above_thirty_seconds(prefer: str, seconds: float) -> None:
    assert wait_s(prefer) == seconds


@pytest.mark.parametrize(("text", "seconds"), [(None, None), ("90", 90.0), ("90s", 90.0), ("1h30m", 5_400.0)])
def test_a_time_to_cancel_after_is_read(text: str | None, seconds: float | None) -> None:
    assert cancel_after_s(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "1.5s", "5 m", "9" * 400])
def test_any_other_time_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="Cancel-After"):
        cancel_after_s(text)


@pytest.mark.parametrize(
    ("text", "model", "version"),
    [
        ("hello:1", "hello", "1"),
        ("me/hello", "hello", ""),
        ("me/hello:1", "hello", "1"),
        ("abc123", "", "abc123"),
        ("hello:", "", "hello"),
    ],
)
def test_a_version_is_named_with_its_model_or_alone(text: str, model: str, version: str) -> None:
    assert split_version(text) == (model, version)


def wanted(**members: object) -> tuple[str, str]:
    return wanted_events(prediction_request({"version": "a", "input": {}, **members}, needs_version=True))


def test_a_webhook_gets_the_events_of_its_filter() -> None:
    url = "https://hooks.example/a"
    assert wanted() == ("", "")
    assert wanted(webhook=url) == (url, "psfcxR")
    assert wanted(webhook=url, webhook_events_filter=["completed", "start", "completed"]) == (url, "sfcxR")
    assert wanted(webhook=url, webhook_events_filter=["logs"]) == (url, "pR")
    assert wanted(webhook_completed=url) == (url, "sfcxR")


@pytest.mark.parametrize(("events", "why"), [(["begin"], "no event 'begin'"), (["start", "output"], "no event would be sent")])
def test_a_filter_that_lets_no_event_through_is_refused(events: list[str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        wanted(webhook="https://hooks.example/a", webhook_events_filter=events)


@pytest.mark.parametrize(
    ("name", "data", "sent"),
    [
        ("chunk", b'"one\\ntwo"', b"event: output\nid: 7\ndata: one\ndata: two\n\n"),
        ("chunk", b'"\\rdata: forged"', b"event: output\nid: 7\ndata: \ndata: data: forged\n\n"),
        ("chunk", b'{"a":1}', b'event: output\nid: 7\ndata: {"a":1}\n\n'),
        ("progress", b'{"fraction":0.5,"note":"half"}', b"event: logs\nid: 7\ndata: 50% half\n\n"),
        ("status", b"{}", b""),
        ("end", b'{"status":"succeeded"}', b"event: done\nid: 7\ndata: {}\n\n"),
        ("end", b'{"status":"expired"}', b'event: done\nid: 7\ndata: {"reason":"canceled"}\n\n'),
    ],
)
def test_a_stream_has_the_words_of_replicate_alone(name: str, data: bytes, sent: bytes) -> None:
    assert b"".join(translated(ToldEvent(name, "7", data))) == sent


def test_a_stream_that_begins_anew_ends_with_an_error() -> None:
    [event] = translated(ToldEvent("restart", "7", b"{}"))
    assert event.startswith(b"event: error\nid: 7\ndata: the prediction was restarted")
