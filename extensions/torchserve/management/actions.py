"""What each path of TorchServe's management answers, once its caller is known and may ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response

from penstock.extensions.torchserve.gateway.errors import bad_request, invalid_token, no_path
from penstock.extensions.torchserve.gateway.replies import control_reply, plain_reply
from penstock.extensions.torchserve.gateway.tokens import RENEWABLE
from penstock.extensions.torchserve.management.customized import DescribeRunner
from penstock.extensions.torchserve.management.documents import management_description, model_description
from penstock.extensions.torchserve.management.routes import Action, ManagementTarget
from penstock.extensions.torchserve.management.service import ManagementReply, ModelManagement
from penstock.extensions.torchserve.management.workflows import WorkflowManagement
from penstock.gateway.asgi import wire
from penstock.gateway.asgi.bodies import parse_json
from penstock.gateway.asgi.connection import connection_of
from penstock.gateway.asgi.negotiation import JSON, Head, base_type, parse_query, refuse_encoded
from penstock.gateway.asgi.wire import Receive, Scope
from penstock.gateway.auth.keys import Caller
from penstock.gateway.services import Services

_MOST_BODY_BYTES = 64 * 1024
_MOST_DEPTH = 16


class ManagementActions:
    """`tokens` None: callers send none, and there is no route that renews one."""

    def __init__(self, services: Services, service: ModelManagement, workflows: WorkflowManagement) -> None:
        self._service = service
        self._workflows = workflows
        self._tokens = services.auth.tokens
        self._uploads = services.uploads
        self._health = services.health
        self._describe = DescribeRunner(services.predict, services.results, within_s=services.options.sync_timeout_s)

    async def reply(self, target: ManagementTarget, caller: Caller, scope: Scope, receive: Receive, head: Head) -> Response:
        sent_id = head.get(b"x-request-id")
        if target.action is Action.TOKEN:
            await self._renew(caller, parse_query(scope["query_string"]))
            return plain_reply(b"", sent_id=sent_id)
        given = await self._given(target, caller, scope, receive, head)
        found = await self._managed(target, given, caller, scope)
        return control_reply(found.value, status=found.status, sent_id=sent_id)

    async def _managed(
        self, target: ManagementTarget, given: Mapping[str, Any], caller: Caller, scope: Scope
    ) -> ManagementReply:
        service, model, version = self._service, target.model, target.version
        run = self._describe.of(caller, connection_of(scope))
        asked: dict[Action, Callable[[], Awaitable[ManagementReply]]] = {
            Action.API_DESCRIPTION: self._description,
            Action.PING: self._ping,
            Action.LIST: lambda: service.list_models(given),
            Action.REGISTER: lambda: service.register(given),
            Action.DESCRIBE: lambda: service.describe(model, version, given, run=run),
            Action.SCALE: lambda: service.scale(model, version, given),
            Action.SET_DEFAULT: lambda: service.set_default(model, version),
            Action.UNREGISTER: lambda: service.unregister(model, version),
            Action.READINESS: lambda: service.readiness(model),
            Action.DESCRIPTION: lambda: self._description_of(model),
            Action.LIST_WORKFLOWS: lambda: self._workflows.list_workflows(given),
            Action.REGISTER_WORKFLOW: lambda: self._workflows.register(given),
            Action.DESCRIBE_WORKFLOW: lambda: self._workflows.describe(model),
            Action.UNREGISTER_WORKFLOW: lambda: self._workflows.unregister(model),
        }
        return await asked[target.action]()

    async def _ping(self) -> ManagementReply:
        is_ready = await self._health.is_ready()
        return ManagementReply(200 if is_ready else 500, {"status": "Healthy" if is_ready else "Unhealthy"})

    async def _description(self) -> ManagementReply:
        return ManagementReply(200, management_description())

    async def _description_of(self, model: str) -> ManagementReply:
        await self._service.readiness(model)  # raises for a model that is not there
        return ManagementReply(200, model_description(model))

    async def _given(
        self, target: ManagementTarget, caller: Caller, scope: Scope, receive: Receive, head: Head
    ) -> Mapping[str, Any]:
        """The query's parameters; of a registration with a JSON body its members, and then no others, as there."""
        if target.action is not Action.REGISTER or base_type(head.get(b"content-type", b"").decode("latin-1")) != JSON:
            return parse_query(scope["query_string"])
        refuse_encoded(head)
        body = await wire.read_body(receive, head, limit=_MOST_BODY_BYTES, memory=self._uploads, owner=caller.owner)
        value = parse_json(body, max_depth=_MOST_DEPTH)
        if not isinstance(value, dict):
            raise bad_request("The body must be a JSON object.")
        scope["said"] = value
        return value

    async def _renew(self, caller: Caller, given: Mapping[str, str]) -> None:
        """The new token stands in the file alone, so that only who may read that gets it."""
        if self._tokens is None:
            raise no_path()
        name = given.get("type", "")
        if not self._tokens.is_api(caller) or name not in RENEWABLE:
            raise invalid_token("Authentication")
        await asyncio.to_thread(self._tokens.renew, name)
