"""The doors over gRPC: the Open Inference Protocol's and TorchServe's, with the messages of their descriptors."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import orjson

from tests.doors.door import Call, Door, Refusal, Reply, Unsupported
from tests.doors.door_oip import PRIORITY, WEBHOOK
from tests.doors.door_predictions import CANCELS
from tests.doors.door_torchserve import REFUSALS
from tests.doors.stack import Site

_HTTP_ONLY = "a call of gRPC has no method of HTTP"
_FIXED = "a message of gRPC has one media type"
CODES: Mapping[str, Refusal] = {
    "unauthorized": ("UNAUTHENTICATED", "unauthorized"),
    "wrong_role": ("PERMISSION_DENIED", "wrong_role"),
    "rate_limited": ("RESOURCE_EXHAUSTED", "rate_limited"),
    "quota_spent": ("RESOURCE_EXHAUSTED", "quota_spent"),
    "overloaded": ("RESOURCE_EXHAUSTED", "overloaded"),
    "no_worker": ("UNAVAILABLE", "no_worker"),
    "store_unavailable": ("UNAVAILABLE", "store_unavailable"),
    "storage_full": ("RESOURCE_EXHAUSTED", "storage_full"),
    "unknown_model": ("NOT_FOUND", "not_found"),
    "unknown_version": ("NOT_FOUND", "not_found"),
    "unreadable": ("INVALID_ARGUMENT", "bad_request"),
    "empty": ("INVALID_ARGUMENT", "bad_request"),
    "misfit": ("INVALID_ARGUMENT", "invalid_input"),
    "too_large": ("RESOURCE_EXHAUSTED", "too_large"),
    "key_reused": ("INVALID_ARGUMENT", "idempotency_key_reused"),
    "expired": ("DEADLINE_EXCEEDED", "expired"),
    "headers": ("RESOURCE_EXHAUSTED", "headers_too_large"),
    "failed:handler_error": ("INTERNAL", "handler_error"),
    "failed:my_own": ("INTERNAL", "my_own"),
    "failed:bad_image": ("INVALID_ARGUMENT", "bad_image"),
    "failed:invalid_input": ("INVALID_ARGUMENT", "invalid_input"),
    "failed:too_large": ("RESOURCE_EXHAUSTED", "too_large"),
    "failed:input_url_failed": ("INVALID_ARGUMENT", "input_url_failed"),
    "failed:oom": ("RESOURCE_EXHAUSTED", "oom"),
    "failed:timeout": ("DEADLINE_EXCEEDED", "timeout"),
    "failed:load_failed": ("UNAVAILABLE", "load_failed"),
}

# As TorchServe maps them; every other status is INTERNAL.
_CODES_OF_TORCHSERVE: Mapping[int, str] = defaultdict(
    lambda: "INTERNAL",
    {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
        413: "RESOURCE_EXHAUSTED",
        415: "INVALID_ARGUMENT",
        422: "FAILED_PRECONDITION",
        429: "RESOURCE_EXHAUSTED",
        503: "UNAVAILABLE",
        504: "DEADLINE_EXCEEDED",
    },
)


class GrpcDoor(Door):
    """`service` and `method` are gRPC's; `port` is the name of the site's port."""

    service: ClassVar[str]
    method: ClassVar[str]
    port: ClassVar[str]
    descriptors: ClassVar[tuple[str, str]]
    refusals: ClassVar[Mapping[str, Refusal]] = CODES

    @cached_property
    def pool(self) -> Any:
        from penstock.gateway.rpc.pool import MessagePool

        return MessagePool(*self.descriptors)

    def message_of(self, call: Call) -> bytes:
        raise NotImplementedError

    def output_of(self, data: bytes) -> Reply:
        raise NotImplementedError

    def channel(self, site: Site) -> Any:
        """The site's channel of this port; it lasts as long as the site."""
        import grpc

        return site.once(f"channel-{self.port}", lambda: grpc.insecure_channel(f"127.0.0.1:{site.ports[self.port]}"))

    def send(self, site: Site, call: Call) -> Reply:
        import grpc

        if call.method or call.media:
            raise Unsupported(_HTTP_ONLY if call.method else _FIXED)
        begun = self._begin(site, call)
        try:
            data: bytes = begun.result()
        except grpc.RpcError as error:
            return self._refusal(error)
        return replace(self.output_of(data), headers=self._metadata(begun))

    def _begin(self, site: Site, call: Call) -> Any:
        message = self.message_of(call) if call.body is None else call.body
        timeout = call.timeout_s if call.deadline_s is None else call.deadline_s
        metadata = tuple(call.sent_headers(site).items())
        method = self.channel(site).unary_unary(f"/{self.service}/{self.method}")
        return method.future(message, timeout=timeout, metadata=metadata)

    def _metadata(self, call: Any) -> dict[str, str]:
        pairs = (*(call.initial_metadata() or ()), *(call.trailing_metadata() or ()))
        return {name: value for name, value in pairs if isinstance(value, str)}

    def _refusal(self, error: Any) -> Reply:
        headers = self._metadata(error)
        text = error.details() or ""
        code, job = self.code_in(error), headers.get("x-penstock-job", "")
        return Reply(status=error.code().name, code=code, text=text, headers=headers, job=job)

    def code_in(self, error: Any) -> str:
        """The reason in google.rpc.ErrorInfo."""
        from google.rpc import error_details_pb2, status_pb2

        details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
        for one in status_pb2.Status.FromString(details).details if details else ():
            info = error_details_pb2.ErrorInfo()
            if one.Unpack(info):
                return str(info.reason)
        return ""

    def is_refused(self, reply: Reply) -> bool:
        return reply.status != "OK"

    def check_refusal(self, reply: Reply) -> None:
        assert reply.text
        assert reply.headers["x-request-id"]

    @contextmanager
    def held(self, site: Site, call: Call) -> Iterator[None]:
        begun = self._begin(site, call)
        try:
            yield
        finally:
            begun.cancel()

    def is_described(self, site: Site) -> bool:
        """Whether the port's reflection lists the service."""
        from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

        stub = reflection_pb2_grpc.ServerReflectionStub(self.channel(site))
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        metadata = (("authorization", site.bearer()["authorization"]),)
        [answer] = stub.ServerReflectionInfo(iter([asked]), metadata=metadata, timeout=20.0)
        return self.service in [one.name for one in answer.list_services_response.service]

    def counted(self, site: Site) -> float:
        return site.metric("penstock_grpc_requests_total", method=self.method)


class OipGrpcDoor(GrpcDoor):
    name: ClassVar[str] = "oip_grpc"
    title: ClassVar[str] = "gRPC"
    page: ClassVar[str] = "open-inference-protocol.md"
    route: ClassVar[str] = "ModelInfer"
    service: ClassVar[str] = "inference.GRPCInferenceService"
    method: ClassVar[str] = "ModelInfer"
    port: ClassVar[str] = "oip"
    descriptors: ClassVar[tuple[str, str]] = ("penstock.extensions.oip.grpc", "inference.binpb")
    # An empty message names no model.
    refusals: ClassVar[Mapping[str, Refusal]] = {**CODES, "empty": ("NOT_FOUND", "not_found")}
    lacks: ClassVar[Mapping[str, str]] = {
        "webhook": WEBHOOK,
        "cancel": CANCELS,
        "media": _FIXED,
        "method": _HTTP_ONLY,
        "access_log": "the access log has requests of HTTP",
        "cross_site": "no browser sends gRPC",
    }

    def message_of(self, call: Call) -> bytes:
        parameters: dict[str, Any] = {}
        if call.priority:
            parameters["priority"] = {"int64_param": PRIORITY[call.priority]}
        if call.deadline_s is not None:
            parameters["timeout"] = {"int64_param": int(call.deadline_s * 1e6)}
        contents = {"int64_contents": [7]} if call.misfit else {"bytes_contents": [call.text.encode()]}
        given = {"name": "order", "datatype": "INT64" if call.misfit else "BYTES", "shape": [1], "contents": contents}
        named = {"model_name": call.model, "model_version": call.version}
        made: bytes = self.pool.written("inference.ModelInferRequest", **named, inputs=[given], parameters=parameters)
        return made

    def output_of(self, data: bytes) -> Reply:
        found = self.pool.message_class("inference.ModelInferResponse").FromString(data)
        raw = {one.name: content for one, content in zip(found.outputs, found.raw_output_contents, strict=True)}
        job = found.parameters["job"].string_param if "job" in found.parameters else ""
        return Reply(status="OK", n=struct.unpack("<d", raw["n"])[0], job=job, size=len(data))


class TorchServeGrpcDoor(GrpcDoor):
    name: ClassVar[str] = "torchserve_grpc"
    title: ClassVar[str] = "gRPC"
    page: ClassVar[str] = "torchserve.md"
    route: ClassVar[str] = "Predictions"
    service: ClassVar[str] = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
    method: ClassVar[str] = "Predictions"
    port: ClassVar[str] = "torchserve"
    descriptors: ClassVar[tuple[str, str]] = ("penstock.extensions.torchserve.grpc", "torchserve.binpb")
    refusals: ClassVar[Mapping[str, Refusal]] = {
        **{kind: (_CODES_OF_TORCHSERVE[int(status)], name) for kind, (status, name) in REFUSALS.items()},
        # These are refused before the message is read, and so in no words of TorchServe's.
        **{kind: CODES[kind] for kind in ("unauthorized", "wrong_role", "rate_limited", "unreadable")},
        "headers": ("INTERNAL", "headers_too_large"),
    }
    _FIELDS = "a request of TorchServe's gRPC is the fields of an input, and has no options"
    lacks: ClassVar[Mapping[str, str]] = {
        "webhook": _FIELDS,
        "priority": _FIELDS,
        "cancel": CANCELS,
        "media": _FIXED,
        "method": _HTTP_ONLY,
        "access_log": "the access log has requests of HTTP",
        "cross_site": "no browser sends gRPC",
    }

    def code_in(self, error: Any) -> str:
        """The name of TorchServe's exception, in a second line, if the refusal has one."""
        return (error.details() or "").partition("\n")[2] or super().code_in(error)

    def message_of(self, call: Call) -> bytes:
        fields = {"unheard": b"7"} if call.misfit else {"order": call.text.encode()}
        kind = f"{self.service.rpartition('.')[0]}.PredictionsRequest"
        made: bytes = self.pool.written(kind, model_name=call.model, model_version=call.version, input=fields)
        return made

    def output_of(self, data: bytes) -> Reply:
        kind = self.pool.message_class(f"{self.service.rpartition('.')[0]}.PredictionResponse")
        found = kind.FromString(data)
        return Reply(status="OK", n=orjson.loads(found.prediction)["n"], size=len(data))
