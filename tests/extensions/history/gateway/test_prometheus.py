"""Histories from Prometheus: which steps, what is asked, and what is made of its answers. A real one is in tests/monitoring."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.extensions.history.gateway.prometheus import (
    LENGTHS_S,
    PrometheusHistory,
    PrometheusUnavailable,
    body,
    queries,
    series_of,
    steps_of,
)
from penstock.extensions.history.gateway.view import history_of, view
from penstock.extensions.history.gateway.window import HistoryRange, HistoryWindow
from penstock.loadtest.stack import free_port

NOW = 1_795_475_785.25
DAY_S = 86_400
WINDOW = HistoryWindow(300, range(600, 1_500, 300))


@given(st.integers(1_200, 366 * DAY_S))
def test_steps_are_over_not_too_many_and_as_short_as_can_be(range_s: int) -> None:
    found = steps_of(HistoryRange(range_s), NOW)
    assert 0 < len(found.at) <= 366
    assert NOW - found.length_s < found.at[-1] + found.length_s <= NOW
    assert all(range_s > 366 * length for length in LENGTHS_S if length < found.length_s)


@pytest.mark.parametrize(
    ("asked", "detail"),
    [
        (HistoryRange(since=NOW - 400 * DAY_S), "at most 366 steps"),
        (HistoryRange(since=NOW - 10), "no step of 300 s is over"),
        (HistoryRange(since=NOW + 10), "in the future"),
    ],
)
def test_a_time_without_steps_is_refused(asked: HistoryRange, detail: str) -> None:
    with pytest.raises(BadRequest, match=detail):
        steps_of(asked, NOW)


def test_every_series_is_asked_for_of_the_model_and_of_this_deployment() -> None:
    of_one = queries("square", 'namespace="prod"', 300)
    assert all('{model="square",namespace="prod"}[300s]' in query for query in of_one.values())
    assert all("{}[300s]" in query for query in queries("", "", 300).values())


def matrix(value: str, **labels: str) -> dict[str, Any]:
    """A series at the end of the second step."""
    return {"metric": labels, "values": [[1_200, value]]}


FOUND = {name: [matrix("0.5")] for name in queries("m", "", 300)} | {
    "ended": [matrix("2", status="succeeded"), matrix("1", status="failed")],
    "releases": [matrix("3", reason="idle"), matrix("1", reason="full"), matrix("0", reason="wait")],
    "busy_share": [matrix("1.25")],
    "total_s p99": [matrix("+Inf")],
    "batch_size": [matrix("NaN")],
}


def test_an_answer_has_the_shape_of_the_stores() -> None:
    shown, of_store = body("m", WINDOW, FOUND), view(history_of({}, model="m", window=WINDOW))
    assert shown.keys() == of_store.keys()
    assert (shown["source"], of_store["source"]) == ("prometheus", "store")
    assert all(len(values) == len(WINDOW.at) for name, values in shown.items() if isinstance(values, list))


def test_a_value_is_that_of_the_step_at_whose_end_it_was_taken() -> None:
    shown = body("m", WINDOW, FOUND)
    assert shown["accepted_per_s"] == [None, 0.5, None]
    assert (shown["succeeded_per_s"][1], shown["failed_per_s"][1], shown["expired_per_s"][1]) == (2.0, 1.0, None)
    assert shown["releases"] == {"full": [None, 0.25, None], "idle": [None, 0.75, None]}
    assert (shown["busy_share"][1], shown["total_s"]["p99"][1], shown["batch_size"][1]) == (1.0, None, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps({"status": "error", "error": "query timed out"}).encode(), "query timed out"),
        (b"<html>", "no answer of Prometheus"),
        (b"[]", "no answer of Prometheus"),
    ],
)
def test_a_refusal_says_what_prometheus_said(text: bytes, why: str) -> None:
    with pytest.raises(PrometheusUnavailable, match=why):
        series_of(text, "status 503")


async def test_a_prometheus_that_is_away_is_said_to_be() -> None:
    source = PrometheusHistory(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(PrometheusUnavailable, match="does not answer: ConnectError"):
        await source.read("m", HistoryRange(3_600), NOW)


async def test_many_who_ask_at_once_are_a_few_questions_at_a_time() -> None:
    most = is_open = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal most, is_open
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(re.findall(rb"content-length: (\d+)", head.lower())[0])
                await reader.readexactly(length)
                is_open += 1
                most = max(most, is_open)
                await asyncio.sleep(0)
                is_open -= 1
                text = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        source = PrometheusHistory(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        found = await asyncio.gather(*(source.read("m", HistoryRange(3_600), NOW) for _ in range(5)))
    assert 1 < most <= 6
    assert all(one["waiting"] == [None] * 12 for one in found)
