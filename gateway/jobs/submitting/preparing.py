"""From drafts to requests that can be stored: look up, read, check, trace. Refusals are counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.access import wanted_headers
from penstock.errors import PenstockError
from penstock.gateway.asgi import negotiation
from penstock.gateway.jobs.extending import Sending
from penstock.gateway.jobs.submitting.draft import Draft, SettledDraft, SubmitRequest
from penstock.gateway.jobs.submitting.submit_options import NO_OPTIONS, SubmitOptions, fingerprint, started_later
from penstock.gateway.models.placing import version_of_repeat
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.inputs.request import packed
from penstock.job import Payload
from penstock.trace_context import TraceContext

if TYPE_CHECKING:
    from penstock.gateway.services import Services

# The label of refusals whose model is unknown.
UNKNOWN = "unknown"


class Preparation:
    """One step after the other, the cheapest check first."""

    def __init__(self, services: Services) -> None:
        self._words = services.words
        self._has_asked = bool(services.words.asked)
        self._store = services.store
        self._registry = services.registry
        self._metrics = services.metrics
        self._tracer = services.tracer

    async def settle(self, draft: Draft) -> SettledDraft:
        """Model, version, options, words and key of the draft. Does not read its input. Raises on the first fault."""
        model = UNKNOWN
        try:
            entry, version = await self._registry.find(draft.model, draft.version, draft.headers)
            model, options = entry.info.name, draft.options
            key = negotiation.idempotency_key(draft.head) if draft.key is None else draft.key
            if options is not NO_OPTIONS and not isinstance(options, SubmitOptions):
                options = await options(entry, version)
            if options.not_before is not None:
                options = started_later(options, now=await self._store.now())
            words = draft.words
            if options.said or (self._has_asked and not draft.is_awaited and draft.replay_of is None):
                words = {**words, **self._words.words_of(draft, options.said, model)}
            return SettledDraft(entry, version, options, words, key)
        except PenstockError as error:
            self._metrics.count_refusal(model, error)
            raise

    async def prepare(self, draft: Draft) -> SubmitRequest:
        """The request of the draft, read and checked; raises on the first fault."""
        settled = draft.settled or await self.settle(draft)
        entry, version, options = settled.model, settled.version, settled.options
        key = settled.key if draft.key is None else draft.key
        try:
            if key and version.chosen:
                version = await version_of_repeat(self._store, entry, version, owner=draft.caller.owner, key=key)
            given = await draft.input(version)
            payload = given
            if entry.info.request_headers or options.query:
                payload = packed(given, headers=wanted_headers(draft.headers, entry.info.request_headers), query=options.query)
        except PenstockError as error:
            self._metrics.count_refusal(entry.name, error)
            raise
        digest = fingerprint(draft.kind, entry.name, draft.version, given if draft.said is None else draft.said) if key else ""
        trace, sending = None, None
        if self._tracer is not None or b"traceparent" in draft.head:
            trace, sending = self._traced(draft, entry, version, payload)
        caller, words, replay_of, scope = (
            draft.caller,
            settled.words,
            draft.replay_of,
            None if draft.keeps_body else draft.scope,
        )
        return SubmitRequest(
            entry, version, payload, options, caller, key, digest, draft.call, trace, sending, replay_of, words, scope
        )

    @contextmanager
    def counting(self, model: str = UNKNOWN) -> Iterator[None]:
        """Counts a refusal in the block under this model's name, which must be known."""
        try:
            yield
        except PenstockError as error:
            self._metrics.count_refusal(model, error)
            raise

    def _traced(
        self, draft: Draft, entry: ModelEntry, version: VersionEntry, payload: Payload
    ) -> tuple[TraceContext | None, Sending | None]:
        """The caller's trace, or a new one."""
        trace, sending = negotiation.caller_trace(draft.head), None
        if self._tracer is not None:
            sending = self._tracer.begin(entry.name, version.name, trace, size_bytes=len(payload.data))
            trace = sending.trace
        # The response to a failed request carries it too.
        draft.scope["trace"] = trace
        return trace, sending
