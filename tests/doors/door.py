"""What the suite asks of a door: to send a call in its own protocol, and to read the reply back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from tests.doors.stack import Site

# Every feature that the suite checks, in the order and the words of the tables "what works".
FEATURES: Mapping[str, str] = {
    "predict": "an input in, its output out",
    "versions": "a version can be named",
    "keys": "a valid key is needed",
    "roles": "the key needs the role",
    "owners": "a job belongs to the owner of its key",
    "rate": "the rate of a key is kept, and the refusal says when to come back",
    "quota": "the open jobs of an owner are limited, and the refusal says when to come back",
    "full": "a full queue is refused, and the refusal says when to come back",
    "worker": "a model without a worker is refused at once",
    "away": "an unreachable store is 503 with the seconds",
    "disk": "a full disk refuses large inputs",
    "counted": "a refusal is counted in `penstock_rejected_total`",
    "counted_full": "a full queue is counted in `penstock_rejected_total`",
    "deadline": "a deadline can be set",
    "expired": "a job that is too late ends, and the caller learns it",
    "hang_up": "a caller that leaves cancels its job",
    "cancel": "a job can be cancelled",
    "idempotency": "a repeat with the same key is the same job",
    "key_reused": "a key that another request had is refused",
    "trace": "`traceparent` reaches the job",
    "trace_back": "`traceparent` comes back",
    "webhook": "a webhook can be named",
    "priority": "a priority can be set",
    "split": "a split of the model is followed",
    "split_repeat": "a repeat gets the version of its first job although the split has changed",
    "failures": "the failure of a model keeps its code or its message",
    "unknown_model": "an unknown model is refused",
    "unknown_version": "an unknown version is refused",
    "unreadable": "a body that cannot be read is refused",
    "empty": "an empty body is refused",
    "media": "a wrong media type is refused",
    "misfit": "an input that does not fit the model's schema is refused before it is stored",
    "too_large": "too large a body is refused",
    "large_in": "large inputs travel beside the record",
    "large_out": "large outputs travel beside the record",
    "unicode": "any text goes through",
    "alone": "a bad input fails alone in its batch",
    "killed": "a killed worker costs no answer",
    "method": "another method is refused",
    "headers": "too many headers are refused",
    "cross_site": "a browser on another site's page is refused",
    "metrics": "the call is counted by its route",
    "log": "the log tells of the job",
    "access_log": "the access log has a line for the call",
    "request_id": "`x-request-id` comes back with a refusal",
    "described": "the route is described (OpenAPI, reflection)",
}


class Unsupported(AssertionError):
    """The protocol has no words for what the call asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request in the words of no protocol. What a door's protocol has no place for, the door leaves out.

    `order`: what the model is to do (tests/handlers/obeying.py). `body`, `media`: in place of the door's own. `key`: a name of
    `KEYS`, None for no key. `misfit`: an input beside the model's schema, in place of the order. `retried`: the failed job
    whose replay this is. `timeout_s`: how long the client waits.
    """

    order: Mapping[str, Any] = field(default_factory=lambda: {"n": 4})
    model: str = "orders"
    version: str = ""
    key: str | None = "all"
    deadline_s: float | None = None
    idempotency: str = ""
    trace: str = ""
    webhook: str = ""
    priority: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    media: str = ""
    method: str = ""
    misfit: bool = False
    retried: str = ""
    timeout_s: float = 20.0

    @property
    def text(self) -> str:
        return json.dumps(self.order)

    def sent_headers(self, site: Site) -> dict[str, str]:
        """The headers or the metadata that every protocol has in common."""
        found = {**self.headers}
        if self.key is not None:
            found["authorization"] = f"Bearer {site.secret(self.key)}"
        if self.trace:
            found["traceparent"] = self.trace
        if self.idempotency:
            found["idempotency-key"] = self.idempotency
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back. `status`: the protocol's own: a number of HTTP, the name of a gRPC code or of Celery's exception, a word.
    `code`: its word for programs. `n`: the number in the output. `headers` have lower-case names. `size`: that of the output.
    """

    status: int | str
    code: str = ""
    n: float | None = None
    job: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    text: str = ""

    @property
    def retry_after_s(self) -> int:
        """The seconds after which to try again; 0 if the reply says nothing of them."""
        return int(self.headers.get("retry-after", "0"))


# What a refusal looks like: its status, and its word for programs.
Refusal = tuple[int | str, str]


class Door:
    """One way by which a request becomes a job.

    `title`, `page`: what it is called, and where in docs/reference, empty for nowhere. `route`: as metrics show it.
    `model`: which of the suite's models it can call. `lacks`: features that the protocol cannot have, each with the reason;
    the suite runs the tests of these, too, and each must fail. `refusals`: how each refusal looks, by its kind or by the
    code of a failed job. `stores_at_once`: whether a call is a job before a worker has read it. `other_methods`: those that
    its route does not have. `settings`: further variables of the suite's gateways and worker.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    page: ClassVar[str] = ""
    route: ClassVar[str]
    model: ClassVar[str] = "orders"
    stores_at_once: ClassVar[bool] = True
    other_methods: ClassVar[Sequence[str]] = ("GET", "PATCH")
    settings: ClassVar[Mapping[str, str]] = {}
    lacks: ClassVar[Mapping[str, str]] = {}
    refusals: ClassVar[Mapping[str, Refusal]] = {}

    def __str__(self) -> str:
        return self.name

    def call(self, **members: Any) -> Call:
        """A call that this door can send; `model` gets the door's own kind of that model."""
        made = Call(**members)
        own = {"orders": self.model, "tight": f"tight-{self.model}"}
        return replace(made, model=own.get(made.model, made.model))

    def prepared(self, site: Site, call: Call) -> Call:
        """The call once all that has to exist before it does."""
        return call

    def send(self, site: Site, call: Call) -> Reply:
        """Send the call, and return what the protocol answers to it."""
        raise NotImplementedError

    def finish(self, site: Site, call: Call, reply: Reply) -> Reply:
        """The end of the job that `reply` told of."""
        return reply

    def held(self, site: Site, call: Call) -> AbstractContextManager[None]:
        """Send the call, and hang up at the end of the block."""
        raise Unsupported(f"{self.name} has no connection to hang up")

    def cancel(self, site: Site, call: Call, job: str) -> None:
        """Cancel a job as the protocol does."""
        raise Unsupported(f"{self.name} cannot cancel")

    def check_refusal(self, reply: Reply) -> None:
        """Assert that a refusal has the protocol's form."""

    def is_described(self, site: Site) -> bool:
        """Whether the gateway's own description lists the door."""
        raise Unsupported(f"{self.name} has no description")

    def counted(self, site: Site) -> float:
        """How many calls the gateway has counted under this door's route."""
        return site.metric("penstock_http_requests_total", route=self.route)

    def ask(self, site: Site, **members: Any) -> Reply:
        """Send a call, and return its end, or its refusal."""
        call = self.prepared(site, self.call(**members))
        reply = self.send(site, call)
        return reply if self.is_refused(reply) else self.finish(site, call, reply)

    def id_of(self, call: Call, job: str) -> str:
        """How the protocol's own words name the job that a call has made."""
        return job

    def is_refused(self, reply: Reply) -> bool:
        return isinstance(reply.status, int) and reply.status >= 400

    def job_of(self, site: Site, reply: Reply, *, model: str = "") -> dict[str, Any]:
        """The record of the job that a reply is about, as the gateway shows it; without a name, the model's newest."""
        return site.job(reply.job) if reply.job else site.newest(model or self.model)


@dataclass(frozen=True)
class Doors:
    """The doors that a run of the suite has."""

    found: Sequence[Door]

    @cached_property
    def by_name(self) -> Mapping[str, Door]:
        return {door.name: door for door in self.found}

    @cached_property
    def settings(self) -> Mapping[str, str]:
        return {name: value for door in self.found for name, value in door.settings.items()}

    def on(self, page: str) -> Iterator[Door]:
        return (door for door in self.found if door.page == page)
