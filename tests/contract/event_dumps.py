"""What the store holds of the events for webhooks, and what must be true of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.extensions.webhooks.contract import PROGRESS, EventState
from penstock.job import JobState

# The letter by which a webhook wants to hear of each end.
LETTERS = {"succeeded": "s", "failed": "f", "dead": "f", "cancelled": "c", "expired": "x"}
# The lists that an entry of a job can stand in, without the endpoint or owner behind the colon.
WAITING, SENDING, PENDING = "events:", "sending:", "pending:"
LISTED = {"undelivered", "undelivered:"}


@dataclass(frozen=True)
class StoredEvent:
    """The events of one job. `places`: the lists it stands in, all of its own endpoint and owner. `looked_at`: whether its
    endpoint is among those that deliverers look at.
    """

    letters: str
    endpoint: str
    event: str
    state: EventState
    number: int
    tries: int
    takes: int
    places: frozenset[str]
    looked_at: bool


def events_in_redis(records: Mapping[str, Mapping[str, str]], entries: Mapping[str, set[str]]) -> dict[str, StoredEvent]:
    """`entries`: the members of each list of events, by the list's whole name."""
    found = {}
    for serial, raw in records.items():
        if not any(name == "webhook" or name.startswith("event") for name in raw):
            continue
        letters, _, endpoint = raw.get("webhook", "").partition(",")
        owner = raw.get("owner", "")
        own = {WAITING: endpoint, SENDING: endpoint, PENDING: owner, "undelivered": "", "undelivered:": owner}
        found[serial] = StoredEvent(
            letters,
            endpoint,
            raw.get("event", ""),
            EventState(raw.get("event_state") or EventState.PENDING),
            int(raw.get("event_number", "0")),
            int(raw.get("event_tries", "0")),
            int(raw.get("event_takes", "0")),
            frozenset(name for name, rest in own.items() if serial in entries.get(name + rest, ())),
            endpoint in entries.get("endpoints", ()),
        )
    return found


def event_faults(state: JobState, stored: StoredEvent) -> Iterator[str]:
    """I5: the event of a job that has ended is the one of its end, if that is wanted, and stands where its state says."""
    places = stored.places - {SENDING}
    if not stored.endpoint:
        yield "I5: an event without a webhook"
    elif not state.final:
        if stored.event not in ("", PROGRESS) or places - {WAITING} != {PENDING}:
            yield f"I5: event {stored.event!r} in {set(stored.places)} of a job that has not ended"
    elif LETTERS[state.value] not in stored.letters:
        if stored.state is not EventState.UNASKED or places:
            yield f"I5: nobody wants to hear of its end, and its event is {stored.state} in {set(stored.places)}"
    else:
        name = "job.failed" if state is JobState.DEAD else f"job.{state.value}"
        if stored.event != name:
            yield f"I5: its event is {stored.event!r}"
        yield from _misplaced(stored, places)


def _misplaced(stored: StoredEvent, places: frozenset[str]) -> Iterator[str]:
    waits = WAITING in places or SENDING in stored.places
    right = {
        EventState.PENDING: places - {WAITING} == {PENDING} and waits and stored.looked_at,
        EventState.UNDELIVERED: places == LISTED,
    }
    if not right.get(stored.state, not places):
        yield f"I5: its event is {stored.state} and stands in {set(stored.places)}"
