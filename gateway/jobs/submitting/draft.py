"""What a door makes of a request, a draft; and what the submitter makes of a draft, a request that can be stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from msgspec import Struct

from penstock.gateway.asgi.negotiation import Head
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.extending import Words
from penstock.gateway.jobs.submitting.submit_options import NO_OPTIONS, OptionsOf, SubmitOptions
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.telemetry.tracing import SendSpan
from penstock.job import Call, JobId, Payload
from penstock.trace_context import TraceContext

RawHeaders = Iterable[tuple[bytes, bytes]]
# What reads the input once its version is known, and checks it. Raises on the first fault.
InputOf = Callable[[VersionEntry], Awaitable[Payload]]


class SettledDraft(Struct, frozen=True):
    """What the draft of a request comes to before its input is read."""

    model: ModelEntry
    version: VersionEntry
    options: SubmitOptions
    words: Words
    key: str


async def no_input(_: VersionEntry) -> Payload:
    """Of a request whose inputs have drafts of their own, which are made of that of the request."""
    return Payload("")


class Draft(Struct, frozen=True, kw_only=True):
    """The job that a request asks for, in the words of no protocol.

    `version`: as the caller named it; empty: the default, or what is chosen for it. `kind`: of which kind of request it is;
    requests of two kinds share no idempotency key. `is_awaited`: the caller waits for the output, and so extensions are asked
    only if the request says something to them. `headers`: for what chooses a version, and for the model; `head`: for the
    gateway, which finds the key and the trace there.
    `scope` is given the trace, which the response names. `key`: in place of that in the head. `said`: what must be the same in
    two requests of one key, if that is not the input. `words`: what only the functions of
    extensions in the store read, by the extension's name. `settled`: of several drafts of one request, which
    are looked up once.
    """

    model: str
    caller: Caller
    kind: str
    is_awaited: bool
    input: InputOf = no_input
    version: str = ""
    call: Call = Call.PREDICT
    options: SubmitOptions | OptionsOf = NO_OPTIONS
    headers: RawHeaders = ()
    head: Head = {}
    scope: MutableMapping[str, Any] = {}
    key: str | None = None
    said: Payload | None = None
    replay_of: JobId | None = None
    words: Words = {}
    settled: SettledDraft | None = None


class SubmitRequest(Struct, frozen=True):
    """A request that was read and checked. `key` and `fingerprint` are empty without an Idempotency-Key.

    `trace` goes into the job and the response: it is the caller's context or, if tracing is on, that of `sending`.
    """

    model: ModelEntry
    version: VersionEntry
    input: Payload
    options: SubmitOptions
    caller: Caller
    key: str = ""
    fingerprint: str = ""
    call: Call = Call.PREDICT
    trace: TraceContext | None = None
    sending: SendSpan | None = None
    replay_of: JobId | None = None
    words: Words = {}

    @property
    def trace_text(self) -> str:
        return self.trace.text if self.trace is not None else ""

    def new_job_id(self) -> JobId:
        return self.model.backlog.new_job_id(self.model.info, owner=self.caller.owner, key=self.key)
