"""Query parameters of a submit: priority, deadline, start, tags, extensions' own. Submits without a query skip this."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import BadRequest
from penstock.extension import submit_parameters
from penstock.gateway.asgi.negotiation import parse_moment, parse_query, parse_seconds, refuse_unknown
from penstock.gateway.jobs.extending import Said
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.job import MAX_DELAY_S, Payload, Priority
from penstock.run import checked_tags

NAMES = ("priority", "deadline_s", "delay_s", "not_before", "tags")


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """`deadline_s` is None if the model's own limit applies. The job does not run before `delay_s` seconds have passed.

    `not_before`: the start, in Unix seconds by the store's clock; `started_later` turns it into `delay_s`.
    """

    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None
    delay_s: float = 0.0
    not_before: float | None = None
    tags: tuple[str, ...] = ()
    # The parameters that the model's settings name.
    query: Mapping[str, str] = field(default_factory=dict)
    # The parameters that extensions check and read.
    said: Said = field(default_factory=dict)


NO_OPTIONS = SubmitOptions()
# Reads the options of a draft once its model is known.
OptionsOf = Callable[[ModelEntry, VersionEntry], Awaitable[SubmitOptions]]


def parse_submit_options(query: bytes, *, of_model: Sequence[str] = (), of_route: Sequence[str] = ()) -> SubmitOptions:
    """The options, and the parameters `of_model`. The route reads those `of_route` itself.

    Raises `BadRequest` for an unknown name too: a misspelt deadline must not be ignored.
    """
    parameters = parse_query(query)
    read_by = submit_parameters()
    own = (*NAMES, *read_by, *of_route)
    refuse_unknown(parameters, (*own, *of_model))
    of_query = {name: parameters[name] for name in of_model if name in parameters and name not in own}
    options = _submit_options(parameters)
    said: dict[str, dict[str, str]] = {}
    for name in read_by.keys() & parameters.keys():
        said.setdefault(read_by[name], {})[name] = parameters[name]
    return replace(options, query=of_query, said=said) if of_query or said else options


def options_in(query: bytes, *, of_route: Sequence[str] = ()) -> OptionsOf:
    """A function that reads the options of a draft from a query, as `parse_submit_options` does."""

    async def read(entry: ModelEntry, _: VersionEntry) -> SubmitOptions:
        return parse_submit_options(query, of_model=entry.info.query, of_route=of_route)

    return read


def _submit_options(said: Mapping[str, str]) -> SubmitOptions:
    """The options as a caller writes them; raises `BadRequest`."""
    priority, deadline_s, delay_s, not_before, tags = map(said.get, NAMES)
    if delay_s is not None and not_before is not None:
        raise BadRequest("delay_s and not_before both say when the job may start", hint="Send one of them.")
    return SubmitOptions(
        priority=Priority.INTERACTIVE if priority is None else _priority(priority),
        deadline_s=None if deadline_s is None else parse_seconds(deadline_s, name="deadline_s"),
        delay_s=0.0 if delay_s is None else _delay(delay_s),
        not_before=None if not_before is None else parse_moment(not_before, name="not_before"),
        tags=() if tags is None else checked_tags(tags.split(",")),
    )


def started_later(options: SubmitOptions, *, now: float) -> SubmitOptions:
    """The options with the delay until their `not_before`. `now`: by the store's clock. Raises `BadRequest`."""
    assert options.not_before is not None
    return replace(options, delay_s=checked_delay(max(0.0, options.not_before - now), name="not_before"))


def checked_delay(seconds: float, *, name: str) -> float:
    """The seconds until a start; raises `BadRequest` for more than `MAX_DELAY_S`."""
    if seconds > MAX_DELAY_S:
        raise BadRequest(f"{name} lies {seconds:.0f} s ahead; a job may start at most {MAX_DELAY_S:.0f} s after its submit")
    return seconds


def _delay(text: str) -> float:
    return 0.0 if text == "0" else checked_delay(parse_seconds(text, name="delay_s"), name="delay_s")


def _priority(text: str) -> Priority:
    try:
        return Priority(text)
    except ValueError:
        raise BadRequest(f"priority must be {' or '.join(Priority)}, not {text[:80]!r}") from None


def fingerprint(route: str, model: str, version: str, payload: Payload) -> str:
    """A digest of the request: kind of route, model, version as the caller named it, media type and body."""
    digest = hashlib.sha256()
    for part in (route.encode(), model.encode(), version.encode(), payload.content_type.encode(), payload.data):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
