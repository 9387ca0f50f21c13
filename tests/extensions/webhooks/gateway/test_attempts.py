"""What follows from an answer of a receiver: done, again and when, or never again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.extensions.webhooks.contract import GIVE_UP_S, EventOutcome
from penstock.extensions.webhooks.gateway.attempts import LONGEST_PAUSE_S, NOT_ALLOWED, ReceiverReply, Schedule, retry_after_s
from penstock.extensions.webhooks.settings import RETRY_S

SCHEDULE = Schedule(RETRY_S, (10.0, 300.0))


@pytest.mark.parametrize(
    ("reply", "outcome", "word"),
    [
        (ReceiverReply(200), EventOutcome.DELIVERED, "200"),
        (ReceiverReply(204), EventOutcome.DELIVERED, "204"),
        (ReceiverReply(302), EventOutcome.AGAIN, "302"),
        (ReceiverReply(400), EventOutcome.AGAIN, "400"),
        (ReceiverReply(410), EventOutcome.GONE, "410"),
        (ReceiverReply(500), EventOutcome.AGAIN, "500"),
        (ReceiverReply(failure="timeout"), EventOutcome.AGAIN, "timeout"),
        (ReceiverReply(failure=NOT_ALLOWED), EventOutcome.REFUSED, NOT_ALLOWED),
    ],
)
def test_an_answer_decides_what_becomes_of_an_event(reply: ReceiverReply, outcome: EventOutcome, word: str) -> None:
    end = SCHEDULE.end_of(reply, tries=1, took_s=0.5, chance=0.5)
    assert (end.outcome, end.answer, end.took_s, end.circuit_s) == (outcome, word, 0.5, (10.0, 300.0))


def test_an_event_is_tried_eight_times_over_a_day() -> None:
    """With the first attempt. The store cuts the last wait short, so that the last attempt comes when the day is over."""
    waits = [SCHEDULE.end_of(ReceiverReply(500), tries=tries, took_s=0.0, chance=0.5).retry_s for tries in range(1, 9)]
    assert waits == pytest.approx([*RETRY_S, RETRY_S[-1]])
    assert sum(RETRY_S[:-1]) < GIVE_UP_S < sum(RETRY_S)


@given(tries=st.integers(0, 1_000), chance=st.floats(0.0, 1.0))
def test_chance_moves_an_attempt_by_a_fifth_at_most(tries: int, chance: float) -> None:
    planned = RETRY_S[min(max(tries, 1), len(RETRY_S)) - 1]
    wait_s = SCHEDULE.end_of(ReceiverReply(500), tries=tries, took_s=0.0, chance=chance).retry_s
    assert 0.8 * planned <= wait_s <= 1.2 * planned + 1e-9


@pytest.mark.parametrize(("status", "pause_s"), [(429, 40.0), (503, 40.0), (500, 0.0), (302, 0.0)])
def test_a_receiver_that_is_busy_says_when_to_come_back(status: int, pause_s: float) -> None:
    end = SCHEDULE.end_of(ReceiverReply(status, retry_after_s=40.0), tries=1, took_s=0.0, chance=0.5)
    assert (end.pause_s, end.retry_s) == (pause_s, pause_s or 5.0)


def test_no_receiver_puts_an_event_off_for_ever() -> None:
    end = SCHEDULE.end_of(ReceiverReply(429, retry_after_s=1e9), tries=1, took_s=0.0, chance=0.5)
    assert (end.pause_s, end.retry_s) == (LONGEST_PAUSE_S, LONGEST_PAUSE_S)


SENT = "Thu, 01 Jan 1970 00:16:40 GMT"


@pytest.mark.parametrize(
    ("text", "sent", "seconds"),
    [
        (None, SENT, None),
        ("7", None, 7.0),
        (" 7 ", None, 7.0),
        ("Thu, 01 Jan 1970 00:16:50 GMT", SENT, 10.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", SENT, 0.0),
        ("Thu, 01 Jan 1970 00:16:50 GMT", None, None),
        ("soon", SENT, None),
        ("-1", SENT, None),
        ("1.5", SENT, None),
        ("9" * 400, SENT, None),
        ("٣", SENT, None),
    ],
)
def test_a_retry_after_is_seconds_or_a_date_by_the_receivers_own_clock(
    text: str | None, sent: str | None, seconds: float | None
) -> None:
    assert retry_after_s(text, sent) == seconds
