"""What a gateway serves of this extension. Called once, while the gateway starts."""

from __future__ import annotations

from penstock.gateway.auth.rules import SUBMIT, RouteRules
from penstock.gateway.extending import GatewayPart, Wording
from penstock.gateway.services import Services
from penstock_jsonrpc.settings import JsonRpcSettings


def gateway(services: Services) -> GatewayPart | None:
    table = services.settings.extension(JsonRpcSettings)
    if not table.enabled:
        return None
    # An extension that is off has imported nothing but its settings.
    from penstock_jsonrpc.door import PATH, JsonRpc
    from penstock_jsonrpc.messages import worded_unread

    return GatewayPart(
        routers=(JsonRpc(services, max_batch=table.max_batch).router(),),
        # A route without a role takes the role manage, so that a forgotten one opens nothing.
        rules=RouteRules({("POST", PATH): SUBMIT}),
        # Refusals before a call is read: a missing key, a rate, a body that is not JSON.
        wordings=(Wording(lambda path: path == PATH, worded_unread),),
    )
