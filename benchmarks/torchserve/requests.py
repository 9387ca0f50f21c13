"""Which requests the comparison sends, by archive, and those about no archive."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.torchserve.exchanges import BYTES, JSON, TEXT, Exchange, FormField, as_json, form, picture

URLENCODED = {"content-type": "application/x-www-form-urlencoded"}


def _predict(about: str, name: str, value: Any, *, path: str = "", headers: Mapping[str, str] = JSON) -> Exchange:
    body = value if isinstance(value, bytes) else as_json(value)
    return Exchange(about, name, path or f"/predictions/{about}", body, headers)


def _form(about: str, name: str, *fields: FormField) -> Exchange:
    body, headers = form(*fields)
    return Exchange(about, name, f"/predictions/{about}", body, headers)


def _echo() -> Iterator[Exchange]:
    yield _predict("echo", "JSON object", {"a": [1, 2.5, None]})
    yield _predict("echo", "JSON string", "text")
    yield _predict("echo", "JSON that cannot be parsed", b"{not json")
    yield _predict("echo", "JSON with a charset", b'{"a": 1}', headers={"content-type": "application/json; charset=utf-8"})
    yield _predict("echo", "text", "grüße".encode(), headers=TEXT)
    yield _predict("echo", "bytes", b"\x00\x01\xff", headers=BYTES)
    yield _predict("echo", "bytes without a type", b"\x00\x01\xff", headers={})
    yield _predict("echo", "no body", b"")
    yield _predict("echo", "urlencoded", b"a=1&b=two%20words&a=3", headers=URLENCODED)
    yield _form(
        "echo",
        "form",
        FormField("plain", b"text"),
        FormField("object", b'{"a": 1}', media_type="application/json"),
        FormField("file", b'{"a": 1}', "a.json", "application/json"),
        FormField("words", b"words", "a.txt", "text/plain"),
        FormField("raw", b"\x00\xff", "a.bin", "application/octet-stream"),
    )
    yield _form("echo", "form with a field twice", FormField("a", b"1"), FormField("a", b"2"))
    yield Exchange("echo", "GET", "/predictions/echo", method="GET")
    yield Exchange("echo", "PUT", "/predictions/echo", as_json({"a": 1}), JSON, method="PUT")
    yield _predict("echo", "with a version", {"a": 1}, path="/predictions/echo/1.0")
    yield _predict("echo", "of an unknown version", {"a": 1}, path="/predictions/echo/9.9")
    yield _predict("echo", "with a slash behind", {"a": 1}, path="/predictions/echo/")
    yield _predict("echo", "query parameters are ignored", {"a": 1}, path="/predictions/echo?b=2")
    yield _predict("echo", "old path", b"", path="/echo/predict?b=2", headers={})
    yield _predict("echo", "SageMaker by name", {"a": 1}, path="/models/echo/invoke")
    yield _predict("echo", "SageMaker by parameter", {"a": 1}, path="/invocations?model_name=echo")
    yield _predict("echo", "KServe v1", {"instances": [{"a": 1}]}, path="/v1/models/echo:predict")


def _formats() -> Iterator[Exchange]:
    for name in ("noop", "noop_stored", "noop_tgz", "noop_folder"):
        yield _predict(name, "one", {"a": 1})


def _tensors() -> Iterator[Exchange]:
    digits = ",".join(str(number / 10) for number in range(16)).encode()
    yield _predict("scores", "one", [0.1, 0.2, 0.3, 0.4])
    yield _predict("scores", "of another shape", [0.1, 0.2])
    yield _predict("digits", "JSON", [number / 10 for number in range(16)])
    yield _form("digits", "form field data", FormField("data", digits))
    yield _predict("digits", "of another shape", [0.5])
    yield _predict("first_row", "one", {"values": [1, 2, 3.5]})
    yield _predict("first_row", "without its key", {"other": 1})
    yield _predict("explained", "prediction", {"values": [1, 2, 5]})
    yield _predict("explained", "explanation", {"values": [1, 2, 5]}, path="/explanations/explained")
    yield _predict("explained", "explanation by KServe", {"values": [1, 2, 5]}, path="/v1/models/explained:explain")


def _pictures() -> Iterator[Exchange]:
    text = base64.b64encode(picture()).decode()
    for about in ("pictures", "rows"):
        yield _predict(about, "a file", picture(), headers={"content-type": "image/png"})
        yield _form(about, "form field data", FormField("data", picture(), "a.png", "image/png"))
        yield _predict(about, "no picture", b"\x00\x01", headers=BYTES)
    yield _predict("pictures", "base64 as JSON", text)
    yield _predict("rows", "base64 as text", text.encode(), headers=TEXT)
    yield _predict("rows", "base64 in JSON", {"instances": [{"b64": text}]})


def _contract() -> Iterator[Exchange]:
    yield _form("fields", "names of its own", FormField("name", b"Ada"), FormField("count", b"3", "n.txt", "text/plain"))
    yield _form("fields", "bytes back", FormField("echo", picture()[:64], "a.png", "image/png"))
    yield _predict("headers", "all", {"a": 1}, headers={**JSON, "x-tenant": "blue"})
    yield _predict("headers", "a status", {"a": 1}, headers={**JSON, "x-answer": "teapot"})
    yield _predict("headers", "a media type", {"a": 1}, headers={**JSON, "x-answer": "text"})
    yield _predict("headers", "a longer path", {"a": 1}, path="/predictions/headers/1.0/some/where")
    yield _predict("counted", "one", {"a": 1})
    yield _predict("settings", "one", {"a": 1})
    yield _predict("configured", "one", {"a": 1})
    yield _predict("described", "one", {"a": 1})
    yield _predict("steps", "one", {"a": 1})
    yield _predict("steps", "chunks of JSON", {"chunks": "json"})
    yield _predict("envelope", "two instances", {"instances": [{"value": 2}, {"value": 5}]})
    yield _predict("envelope", "without instances", {"value": 2})
    for wanted in _REFUSALS:
        yield _predict("refusals", wanted, {"wanted": wanted})


_REFUSALS = (
    "refuse",
    "refuse plainly",
    "raise",
    "memory",
    "too many",
    "no list",
    "object",
    "none",
    "number",
    "text",
)


def _inference() -> Iterator[Exchange]:
    yield Exchange("", "ping", "/ping", method="GET")
    yield Exchange("", "the root", "/", method="GET")
    yield Exchange("", "a path that is not there", "/nowhere", method="GET")
    yield _predict("", "an unknown model", {"a": 1}, path="/predictions/nobody")
    yield _predict("", "invocations without a name", {"a": 1}, path="/invocations")
    yield _predict("", "KServe v1 of an unknown model", {"a": 1}, path="/v1/models/nobody:predict")


def _managed(name: str, path: str, method: str = "GET", about: str = "", body: bytes = b"") -> Exchange:
    return Exchange(about, name, path, body, method=method, port="management")


def _describing() -> Iterator[Exchange]:
    yield _managed("ping", "/ping")
    yield _managed("list, two", "/models?limit=2")
    yield _managed("list, a bad limit", "/models?limit=abc")
    yield _managed("describe", "/models/noop")
    yield _managed("describe a version", "/models/digits/2.0")
    yield _managed("describe all versions", "/models/noop/all")
    yield _managed("describe an unknown model", "/models/nobody")
    yield _managed("describe an unknown version", "/models/noop/9.9")
    yield _managed("describe, customized", "/models/described?customized=true")
    yield _managed("readiness", "/v1/models/noop")
    yield _managed("readiness of an unknown model", "/v1/models/nobody")


def _registering() -> Iterator[Exchange]:
    """In this order: each sees what those before it did."""
    yield _managed("register without a url", "/models", "POST")
    yield _managed("register what is not there", "/models?url=nothing.mar", "POST")
    yield _managed("register out of the store", "/models?url=../noop.mar", "POST")
    yield _managed("register again", "/models?url=noop.mar&model_name=noop", "POST")
    yield _managed("register with a bad runtime", "/models?url=noop_stored.mar&model_name=second&runtime=z", "POST")
    yield _managed("register", "/models?url=noop_stored.mar&model_name=second&initial_workers=1&synchronous=true", "POST")
    yield _managed("register a version again", "/models?url=noop_stored.mar&model_name=second", "POST")
    yield _managed("register without workers", "/models?url=noop_stored.mar&model_name=third&initial_workers=0", "POST")
    yield Exchange("", "predict by a registered model", "/predictions/second", as_json({"a": 1}), JSON)
    yield Exchange("", "predict by a model without workers", "/predictions/third", as_json({"a": 1}), JSON)
    yield _managed("scale", "/models/third?min_worker=1&synchronous=true", "PUT")
    yield Exchange("", "predict after scaling", "/predictions/third", as_json({"a": 1}), JSON)
    yield _managed("scale without waiting", "/models/third?min_worker=1", "PUT")
    yield _managed("scale with max below min", "/models/third?min_worker=2&max_worker=1", "PUT")
    yield _managed("scale an unknown model", "/models/nobody?min_worker=1", "PUT")
    yield _managed("set an unknown default", "/models/noop/3/set-default", "PUT")
    yield _managed("set the default", "/models/noop/1.0/set-default", "PUT")
    yield _managed("unregister", "/models/second", "DELETE")
    yield _managed("unregister again", "/models/second", "DELETE")
    yield _managed("unregister a version", "/models/third/1.0", "DELETE")
    yield Exchange("", "predict by an unregistered model", "/predictions/third", as_json({"a": 1}), JSON)


def exchanges() -> list[Exchange]:
    """All of them, in the order in which they are sent."""
    parts = (_echo, _formats, _tensors, _pictures, _contract, _inference, _describing, _registering)
    return [exchange for part in parts for exchange in part()]
