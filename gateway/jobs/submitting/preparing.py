"""Drafts become requests that can be stored: found, read and checked, traced; each refusal is counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.access import wanted_headers
from penstock.broker.store.aio import AsyncStore
from penstock.errors import PenstockError
from penstock.gateway.asgi import negotiation
from penstock.gateway.jobs.submitting.draft import Draft, SettledDraft, SubmitRequest
from penstock.gateway.jobs.submitting.submit_options import SubmitOptions, fingerprint, started_later
from penstock.gateway.models.registry import ModelEntry, ModelRegistry, VersionEntry
from penstock.gateway.telemetry.metrics import GatewayMetrics
from penstock.gateway.telemetry.tracing import SendSpan, Tracing
from penstock.inputs.request import packed
from penstock.job import Payload
from penstock.trace_context import TraceContext

if TYPE_CHECKING:
    from penstock.extensions.webhooks.webhook import Webhook
    from penstock.settings.tables import Settings

# Whose refusal it is where a request names no model that is known.
UNKNOWN = "unknown"


class Preparation:
    """One step after the other, the cheapest check first."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: AsyncStore,
        registry: ModelRegistry,
        metrics: GatewayMetrics,
        tracing: Tracing | None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._registry = registry
        self._metrics = metrics
        self._tracing = tracing

    async def settle(self, draft: Draft) -> SettledDraft:
        """Model, version, options, webhook and key of the draft, whose input is not read; raises on the first fault."""
        model = UNKNOWN
        try:
            entry, version = await self._registry.find(draft.model, draft.version, draft.headers)
            model, options = entry.name, draft.options
            key = negotiation.idempotency_key(draft.head) if draft.key is None else draft.key
            if not isinstance(options, SubmitOptions):
                options = await options(entry, version)
            if options.not_before is not None:
                options = started_later(options, now=await self._store.now())
            return SettledDraft(entry, version, options, self._webhook(draft, options, model), key)
        except PenstockError as error:
            self._metrics.count_refusal(model, error)
            raise

    async def prepare(self, draft: Draft) -> SubmitRequest:
        """The request of the draft, read and checked; raises on the first fault."""
        entry, version, options, webhook, key = draft.settled or await self.settle(draft)
        try:
            key = key if draft.key is None else draft.key
            if key and version.split:
                # Few models have a split, and the others do without this import.
                from penstock.extensions.splits.gateway.entry import version_of_repeat

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
        if self._tracing is not None or b"traceparent" in draft.head:
            trace, sending = self._traced(draft, entry, version, payload)
        return SubmitRequest(
            entry,
            version,
            payload,
            options,
            draft.caller,
            key,
            digest,
            draft.call,
            trace,
            sending,
            draft.replay_of,
            webhook,
        )

    @contextmanager
    def counting(self, model: str = UNKNOWN) -> Iterator[None]:
        """Counts a refusal in the block as one of this model, which must be known."""
        try:
            yield
        except PenstockError as error:
            self._metrics.count_refusal(model, error)
            raise

    def _webhook(self, draft: Draft, options: SubmitOptions, model: str) -> Webhook | None:
        """Where the events of the job go. Raises `InvalidInput`."""
        if draft.replay_of is not None:
            return draft.webhook
        if not (options.webhook or options.webhook_events):
            of_model = getattr(self._settings.models.get(model), "webhook", "")
            has_default = not draft.is_awaited and (draft.caller.extension_settings.get("webhook") or of_model)
            if not has_default:
                return None
        # Few jobs have a webhook, and the others do without this import.
        from penstock.extensions.webhooks.gateway.requested import webhook_of

        return webhook_of(
            self._settings,
            options.webhook,
            options.webhook_events,
            caller=draft.caller,
            model=model,
            letters=options.webhook_letters,
        )

    def _traced(
        self, draft: Draft, entry: ModelEntry, version: VersionEntry, payload: Payload
    ) -> tuple[TraceContext | None, SendSpan | None]:
        """The trace that the caller sent, or that begins with the request."""
        trace, sending = negotiation.caller_trace(draft.head), None
        if self._tracing is not None:
            sending = self._tracing.begin(entry.name, version.name, trace, size_bytes=len(payload.data))
            trace = sending.trace
        # The response to a failed request carries it too.
        draft.scope["trace"] = trace
        return trace, sending
