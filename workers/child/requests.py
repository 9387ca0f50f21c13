"""Inputs as `penstock.Request`s, for handlers that ask for them. No other model's process imports this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from penstock.errors import InvalidInput
from penstock.handlers.contract import Failure, Request, failure_of
from penstock.inputs.request import RequestInput, decode_request
from penstock.job import REQUEST_MEDIA
from penstock.workers.ipc.frames import Item, JobFacts

# What an item is given that belongs to no job.
_NO_JOB = JobFacts()


def reads_requests(read: Callable[[Item], Any]) -> Callable[[Item], Any]:
    """As `read`, but an item becomes a `Request`; an input that cannot be read stays a `Failure`."""
    return partial(_read, read)


def requests_of(values: Sequence[Any], facts: JobFacts | None) -> list[Any]:
    """The rows of a shard, all of one job and with nothing said beside them, as `Request`s. Failures stay."""
    return [value if isinstance(value, Failure) else _request(value, facts, RequestInput("", b"")) for value in values]


def _read(read: Callable[[Item], Any], item: Item) -> Any:
    if item.is_missing:
        return read(item)
    try:
        said = decode_request(item.data) if item.content_type == REQUEST_MEDIA else RequestInput(item.content_type, item.data)
    except InvalidInput as error:
        return failure_of(error)
    value = read(structs.replace(item, content_type=said.content_type, data=said.data))
    return value if isinstance(value, Failure) else _request(value, item.facts, said)


def _request(value: Any, facts: JobFacts | None, said: RequestInput) -> Request[Any]:
    job = facts or _NO_JOB
    return Request(value, job.job, job.attempt, job.priority, job.owner, said.headers, said.query, job.deadline)
