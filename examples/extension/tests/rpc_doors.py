"""The doors of this extension for penstock's conformance suite: a call alone, and a call among bad neighbours in a batch.

From a checkout of penstock, in an environment with this package:
PYTHONPATH=examples/extension/tests PENSTOCK_TEST_DOORS=rpc_doors:RpcDoor,rpc_doors:RpcBatchDoor pytest tests/doors -k jsonrpc
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import httpx2

from tests.doors.door import Call, Reply
from tests.doors.http_door import HttpDoor
from tests.doors.stack import Site

# Those of the specification, and the one that stands for all of ours.
NUMBERS = (-32_700, *range(-32_603, -32_599), -32_000)


class RpcDoor(HttpDoor):
    name: ClassVar[str] = "jsonrpc"
    title: ClassVar[str] = "`/rpc`"
    route: ClassVar[str] = "/rpc"
    lacks: ClassVar[Mapping[str, str]] = {
        "counted": "the body names the model, so one that is too large is counted as of the model `unknown`",
    }

    def path_of(self, call: Call) -> str:
        return "/rpc"

    def body_of(self, call: Call) -> Any:
        named = {"deadline_s": call.deadline_s, "priority": call.priority, "webhook": call.webhook}
        params: dict[str, Any] = {
            "model": call.model,
            "input": {"order": 7 if call.misfit else call.text},
            "version": call.version,
            "options": {name: value for name, value in named.items() if value},
        }
        if call.idempotency:
            params["idempotency_key"] = call.idempotency
        return self.sent("predict", params)

    def sent(self, method: str, params: Mapping[str, Any]) -> Any:
        return {"jsonrpc": "2.0", "method": method, "params": params, "id": 7}

    def read(self, answer: httpx2.Response) -> Reply:
        reply = replace(super().read(answer), n=None)
        return self.read_response(reply, self._json(answer))

    def read_response(self, reply: Reply, response: Any) -> Reply:
        """What one response says: a refusal has the members of penstock's problems as its data."""
        if "error" not in response:
            return replace(reply, n=response["result"]["n"])
        data = response["error"]["data"]
        again = {"retry-after": str(data["retry_after_s"])} if "retry_after_s" in data else {}
        return replace(reply, status=data["status"], code=data["code"], headers={**again, **reply.headers})

    def cancel(self, site: Site, call: Call, job: str) -> None:
        request = replace(self.request_of(site, call), content=json.dumps(self.sent("cancel", {"job": job})).encode())
        answer = site.http.request("POST", request.path, content=request.content, headers=dict(request.headers))
        assert answer.status_code == 200, answer.text

    def check_refusal(self, reply: Reply) -> None:
        assert reply.headers["content-type"] == "application/json"
        self.check_error(json.loads(reply.text), reply)

    def check_error(self, response: Any, reply: Reply) -> None:
        assert response.keys() == {"jsonrpc", "error", "id"}
        assert response["id"] in (7, None)
        assert response["error"].keys() == {"code", "message", "data"}
        assert response["error"]["data"]["code"] == reply.code
        assert response["error"]["code"] in NUMBERS


class RpcBatchDoor(RpcDoor):
    """Every call has neighbours that are refused, which must not affect it."""

    name: ClassVar[str] = "jsonrpc_batch"
    title: ClassVar[str] = "`/rpc`, batches"

    def sent(self, method: str, params: Mapping[str, Any]) -> Any:
        neighbours = [{"foo": "boo"}, {"jsonrpc": "2.0", "method": "nothing", "id": 1}]
        misfit = {"jsonrpc": "2.0", "method": "predict", "params": {**params, "input": {"order": 7}}, "id": 2}
        return [*neighbours, super().sent(method, params), misfit]

    def read_response(self, reply: Reply, response: Any) -> Reply:
        return super().read_response(reply, self.own(response))

    def check_error(self, response: Any, reply: Reply) -> None:
        super().check_error(self.own(response), reply)

    def own(self, response: Any) -> Any:
        """The response to the call itself. A batch that is refused as a whole has one response for all."""
        return response if isinstance(response, dict) else next(one for one in response if one["id"] == 7)
