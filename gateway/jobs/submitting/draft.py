"""A draft, which a door makes of a request, and a request that can be stored, which the submitter makes of a draft."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from msgspec import Struct

from penstock.gateway.asgi.negotiation import Head
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.extending import Sending, Words
from penstock.gateway.jobs.submitting.submit_options import NO_OPTIONS, OptionsOf, SubmitOptions
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.job import Call, JobId, Payload
from penstock.trace_context import TraceContext

RawHeaders = Iterable[tuple[bytes, bytes]]
# Reads and checks the input once its version is known. Raises on the first fault.
InputOf = Callable[[VersionEntry], Awaitable[Payload]]


class SettledDraft(Struct, frozen=True):
    """A draft after its model, version and options were looked up, before its input is read."""

    model: ModelEntry
    version: VersionEntry
    options: SubmitOptions
    words: Words
    key: str


async def no_input(_: VersionEntry) -> Payload:
    """For a request with several inputs: each input has its own draft, made from the request's."""
    return Payload("")


class Draft(Struct, frozen=True, kw_only=True):
    """The job that a request asks for, independent of its protocol.

    `version`: as the caller named it; empty: the default, or a chosen one. `kind`: the kind of request; requests of different
    kinds share no idempotency key. `is_awaited`: the caller waits for the output, and so extensions are asked only if the
    request says something to them. `headers`: for choosers of versions, and for the model; `head`: for the gateway, which reads
    the key and the trace. `scope` receives the trace for the response. `key` replaces the key in the head. `said` replaces the
    input in the comparison of two requests with one key. `words`: read only by the extensions' functions in the store, by the
    extension's name. `settled`: set if several drafts of one request share one look-up. `keeps_body`: the door holds something
    of the request's body, or makes more jobs of it, after this job is stored.
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
    keeps_body: bool = True


# Not frozen: whoever waits for the answer has this record, so the input leaves it once the job is stored (D145).
class SubmitRequest(Struct):
    """A request that was read and checked. `key` and `fingerprint` are empty without an Idempotency-Key.

    `input` is empty once the job is stored. `scope`: of the request whose share of the memory for bodies the input has; None
    if the door keeps the body. `trace` goes into the job and the response: the caller's context or, if an extension traces
    it, the context of `sending`.
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
    sending: Sending | None = None
    replay_of: JobId | None = None
    words: Words = {}
    scope: MutableMapping[str, Any] | None = None

    @property
    def trace_text(self) -> str:
        return self.trace.text if self.trace is not None else ""

    def new_job_id(self) -> JobId:
        return self.model.backlog.new_job_id(self.model.info, owner=self.caller.owner, key=self.key)
