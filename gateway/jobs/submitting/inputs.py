"""Reads bodies as inputs of a version and checks them against its content types and its schema."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from penstock.gateway.asgi import bodies, negotiation, wire
from penstock.gateway.asgi.negotiation import JSON, MULTIPART, Head
from penstock.gateway.asgi.wire import Receive, Scope
from penstock.gateway.jobs.submitting.draft import Draft
from penstock.gateway.jobs.submitting.form_input import check_form, read_multipart
from penstock.gateway.jobs.submitting.submit_options import NO_OPTIONS, options_in
from penstock.gateway.models.registry import VersionEntry
from penstock.inputs.form import decode_form
from penstock.inputs.request import unpacked
from penstock.job import FORM_MEDIA, NPY_MEDIA, TENSORS_MEDIA, Call, Payload

if TYPE_CHECKING:
    from penstock.settings.gateway import GatewaySettings


class InputReader:
    """Every method raises on the first fault: `BadRequest`, `InvalidInput`, `TooLarge` or `UnsupportedMedia`."""

    def __init__(self, limits: GatewaySettings, uploads: wire.BodyMemory) -> None:
        self._limits = limits
        self._uploads = uploads

    def draft(
        self,
        scope: Scope,
        receive: Receive,
        head: Head,
        model: str,
        version: str,
        *,
        kind: str,
        is_awaited: bool,
        call: Call = Call.PREDICT,
    ) -> Draft:
        """The draft of a request of our own routes: the body is the input, the query has the options."""
        query = scope["query_string"]
        return Draft(
            model=model,
            version=version,
            caller=scope["caller"],
            kind=kind,
            call=call,
            is_awaited=is_awaited,
            input=partial(self.body, scope, receive, head),
            options=options_in(query) if query else NO_OPTIONS,
            headers=scope["headers"],
            head=head,
            scope=scope,
            keeps_body=False,
        )

    async def body(self, scope: Scope, receive: Receive, head: Head, version: VersionEntry) -> Payload:
        """The body of a request as the input of this version."""
        negotiation.refuse_encoded(head)
        media = negotiation.media_type(head.get(b"content-type"), accepts=version.accepts)
        limit = self._limits.max_json_bytes if media == JSON and not version.takes_raw else self._limits.max_raw_bytes
        body = await wire.read_body(scope, receive, head, limit=limit, memory=self._uploads)
        payload = Payload(media, body)
        if media != JSON and negotiation.base_type(media) == MULTIPART:
            payload = await asyncio.to_thread(read_multipart, payload, version, self._limits)
        if payload.content_type == JSON and not version.takes_raw:
            await self._check_json(payload.data, version)
        elif payload.content_type == NPY_MEDIA and NPY_MEDIA in version.accepts:
            # Array files are rare, and only some models take them.
            from penstock.gateway.jobs.tensors import npy_input

            payload = await npy_input(payload.data)
        return payload

    async def json(self, data: bytes, version: VersionEntry) -> Payload:
        """An input in JSON that a door took from its request."""
        negotiation.media_type(JSON.encode(), accepts=version.accepts)
        payload = Payload(JSON, data)
        await self.check(payload, version)
        return payload

    async def stored(self, payload: Payload, version: VersionEntry) -> Payload:
        """An input that was stored for another version."""
        given = unpacked(payload)
        if given.content_type not in (FORM_MEDIA, TENSORS_MEDIA):
            negotiation.media_type(wire.header_value(given.content_type), accepts=version.accepts)
        await self.check(given, version)
        return payload

    async def check(self, payload: Payload, version: VersionEntry) -> None:
        """Checks an input, JSON, tensors or a form. Versions that take raw bodies accept any input."""
        if version.takes_raw:
            return
        if payload.content_type == JSON:
            await self._check_json(payload.data, version)
        elif payload.content_type == FORM_MEDIA:
            await asyncio.to_thread(check_form, decode_form(payload.data), version, self._limits)
        elif payload.content_type == TENSORS_MEDIA:
            from penstock.gateway.jobs.tensors import check_tensor_payload

            await asyncio.to_thread(check_tensor_payload, payload.data, version)

    async def _check_json(self, body: bytes, version: VersionEntry) -> None:
        value = bodies.parse_json(body)
        if version.validator is None:
            return
        if value is not bodies.UNBUILT:
            bodies.check_schema(value, version.validator, version.input_schema)
        elif bodies.is_cheap_to_build(body):
            await asyncio.to_thread(bodies.check_large, body, version.validator, version.input_schema)
