"""Inputs as `penstock.Request`s, for handlers that ask for them. No other model's process imports this module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from penstock.errors import InvalidInput
from penstock.handlers.contract import Failure, failure_of
from penstock.handlers.request import Request
from penstock.inputs.request import RequestInput, decode_request
from penstock.job import REQUEST_MEDIA
from penstock.workers.ipc.frames import Item, JobFacts


def read_request(read: Callable[[Item], Any], item: Item) -> Any:
    """The item as a `Request`, or the `Failure` of an input that cannot be read."""
    if item.is_missing:
        return read(item)
    try:
        said = decode_request(item.data) if item.content_type == REQUEST_MEDIA else RequestInput(item.content_type, item.data)
    except InvalidInput as error:
        return failure_of(error)
    value = read(structs.replace(item, content_type=said.content_type, data=said.data))
    return value if isinstance(value, Failure) else request_of(value, item.facts, said)


def request_of(value: Any, facts: JobFacts | None, said: RequestInput | None = None) -> Request[Any]:
    """The value as a `Request`. Without `facts` it belongs to no job."""
    job, headers, query = facts or JobFacts(), said.headers if said else {}, said.query if said else {}
    return Request(value, job.job, job.attempt, job.priority, job.owner, headers, query, job.deadline)
