"""Inputs as `penstock.Request`s, for handlers that ask for them. No other model's process imports this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from penstock.errors import InvalidInput
from penstock.handlers.contract import Failure, Request
from penstock.inputs.request import RequestInput, decode_request
from penstock.job import REQUEST_MEDIA
from penstock.workers.ipc.frames import Item, JobFacts

if TYPE_CHECKING:
    from penstock.workers.child.runner import Flow

# The facts of an item that belongs to no job.
_NO_JOB = JobFacts()
_NOTHING_SAID = RequestInput("", b"")


def said_of(items: Sequence[Item]) -> tuple[list[Item], dict[int, RequestInput]]:
    """The items with their inputs alone, and by place the headers and parameters of their requests."""
    plain: list[Item] = []
    said: dict[int, RequestInput] = {}
    for place, item in enumerate(items):
        if item.is_missing or item.content_type != REQUEST_MEDIA:
            plain.append(item)
            continue
        try:
            one = decode_request(item.data)
        except InvalidInput:
            # The codec meets the same fault when it reads the item, and the item fails alone.
            plain.append(item)
            continue
        plain.append(structs.replace(item, content_type=one.content_type, data=one.data))
        said[place] = RequestInput("", b"", one.headers, one.query)
    return plain, said


def requests_of(flow: Flow, places: Sequence[int]) -> list[Any]:
    """The values of the flow at these places as `Request`s. Failures stay; so does a `Request` that the handler passed on."""
    return [_request(flow, place, flow.values[flow.live.index(place)]) for place in places]


def _request(flow: Flow, place: int, value: Any) -> Any:
    if isinstance(value, (Failure, Request)):
        return value
    facts = flow.facts or ()
    job, said = (facts[place] if place < len(facts) else None) or _NO_JOB, flow.said.get(place, _NOTHING_SAID)
    return Request(value, job.job, job.attempt, job.priority, job.owner, said.headers, said.query, job.deadline)
