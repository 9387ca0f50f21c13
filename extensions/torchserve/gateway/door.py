"""TorchServe's inference surface behind the ASGI callable: which requests are its own, and who answers each."""

# D99: docs/design/protocols.md

from __future__ import annotations

import uuid
from typing import Any

import penstock
from penstock.extensions.torchserve.gateway.answer import TorchServeAnswers
from penstock.extensions.torchserve.gateway.description import add_routes, api_description, model_description
from penstock.extensions.torchserve.gateway.predict import TorchServePredictions
from penstock.extensions.torchserve.gateway.refusals import word_refusals
from penstock.extensions.torchserve.gateway.replies import FIXED_HEADERS, JSON_HEADER, pretty
from penstock.extensions.torchserve.gateway.routes import API_DESCRIPTION, PING, TorchServeTarget, is_management, target_of
from penstock.extensions.torchserve.served import Ping
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.gateway.asgi.negotiation import Head
from penstock.gateway.asgi.problems import PROBLEM_JSON, request_id_of
from penstock.gateway.asgi.wire import Receive, Scope, Send, answer
from penstock.gateway.services import Services


class TorchServeDoor:
    """One gateway's routes. A request without a target here is answered by other routes."""

    def __init__(self, services: Services, own: TorchServeSettings) -> None:
        self._registry = services.registry
        self._ping = Ping(services.health)
        answers = TorchServeAnswers(
            services.predict,
            store=services.store,
            results=services.results,
            reading=services.reading,
            most_bytes=own.max_response_bytes,
        )
        self._predictions = TorchServePredictions(services, answers)

    def target(self, scope: Scope) -> TorchServeTarget | None:
        """What the request asks for here; None if it is not for these routes, or from a client of penstock's own."""
        if accepts_problems(scope):
            return None
        asked = target_of(scope["path"], scope["method"])
        if asked is None or (asked.is_v2 and not self._takes_raw(asked)):
            if is_management(scope["path"]):
                word_refusals(scope, TorchServeTarget("management"))
            return None
        if not asked.is_v2:
            word_refusals(scope, asked)
        return asked

    def add_routes(self, document: dict[str, Any], keyed: bool) -> dict[str, Any]:
        return add_routes(document, keyed=keyed)

    def _takes_raw(self, target: TorchServeTarget) -> bool:
        """Whether the model's own code reads bodies, and so reads inputs of the Open Inference Protocol, too."""
        entry = self._registry.models.get(target.model)
        version = None if entry is None else entry.versions.get(target.version) if target.version else entry.default
        return version is not None and version.takes_raw

    async def __call__(self, scope: Scope, receive: Receive, send: Send, head: Head, target: TorchServeTarget) -> int:
        """Returns the status that was sent. A prediction's caller is in the scope, and has a permit."""
        if target.is_v2:
            # Not earlier: the words of a refusal would tell a stranger which models exist.
            word_refusals(scope, target)
        # The handler, the answer and a refusal name the same id.
        sent = head.get(b"x-request-id")
        head[b"x-request-id"] = (request_id_of(sent) if sent else str(uuid.uuid4())).encode("ascii")
        if target.route == PING:
            ping = await self._ping.ping()
            return await _reply(send, head, bytes(ping.body), status=ping.status_code)
        if target.route == API_DESCRIPTION:
            return await _reply(send, head, pretty(api_description(penstock.__version__)))
        if scope["method"] == "OPTIONS":
            entry, version = await self._registry.find(target.model, target.version)
            shown = model_description(entry.name, version.name if target.version else "")
            return await _reply(send, head, pretty(shown))
        return await self._predictions(scope, receive, send, head, target)


def accepts_problems(scope: Scope) -> bool:
    """Whether the caller accepts penstock's form of a refusal, which its own clients name and those of TorchServe never do."""
    return any(name == b"accept" and PROBLEM_JSON in value for name, value in scope["headers"])


async def _reply(send: Send, head: Head, body: bytes, *, status: int = 200) -> int:
    length = (b"content-length", b"%d" % len(body))
    await answer(send, status, [JSON_HEADER, length, (b"x-request-id", head[b"x-request-id"]), *FIXED_HEADERS], body)
    return status
