"""Per kind of server: the path, method and headers of a call, and how its result is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote, urlencode

from penstock.errors import BadRequest
from penstock.loadtest.generator.connection import HttpTarget, RequestBody, parse_target, request_bytes
from penstock.loadtest.workload import CallStyle, Kind

# Like the client's long polls: below the gateway's 30 s, so that proxies do not cut the poll off.
_POLL_S = 25


@dataclass(frozen=True, slots=True)
class ProtocolAdapter:
    """`base` is the server's address; `headers`, the API key among them, go with every request."""

    kind: Kind
    caller: CallStyle
    base: str
    target: HttpTarget
    method: str = "POST"
    model: str = ""
    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the target in reports."""
        return self.model or f"{self.base}{self.target.path}"

    def request(self, body: RequestBody | None) -> bytes:
        kind = {"Content-Type": body.content_type} if body else {}
        return request_bytes(self.target, method=self.method, body=body.data if body else b"", headers={**self.headers, **kind})

    def poll_head(self) -> tuple[bytes, bytes]:
        """The bytes before and after the job's id in a request for its result."""
        marked = request_bytes(replace(self.target, path=f"/v1/jobs/\0/result?wait={_POLL_S}"), headers=dict(self.headers))
        before, _, after = marked.partition(b"\0")
        return before, after


def make_adapter(
    kind: Kind,
    base: str,
    model: str,
    *,
    caller: CallStyle = CallStyle.SYNC,
    version: str = "",
    deadline_s: float | None = None,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> ProtocolAdapter:
    """The adapter for the server at `base`, which is the whole URL for `Kind.HTTP`. Raises `BadRequest`."""
    if kind is not Kind.PENSTOCK and caller is not CallStyle.SYNC:
        raise BadRequest(f"--client {caller} needs penstock's jobs", hint=f"leave out --client for --target {kind}")
    if kind is not Kind.HTTP and not model:
        raise BadRequest(f"--target {kind} needs the model's name", hint="penstock bench MODEL --url http://host:port")
    root = base.rstrip("/") if kind is not Kind.HTTP else base
    target = parse_target(root + _path(kind, caller, model, version, deadline_s))
    return ProtocolAdapter(
        kind, caller, root, target, method if kind is Kind.HTTP else "POST", model, version, dict(headers or {})
    )


def _path(kind: Kind, caller: CallStyle, model: str, version: str, deadline_s: float | None) -> str:
    if kind is Kind.HTTP:
        return ""
    name, tail = quote(model, safe=""), quote(version, safe="")
    if kind is Kind.OIP:
        return f"/v2/models/{name}{f'/versions/{tail}' if tail else ''}/infer"
    if kind is Kind.TORCHSERVE:
        return f"/predictions/{name}{f'/{tail}' if tail else ''}"
    query = f"?{urlencode({'deadline_s': f'{deadline_s:g}'})}" if deadline_s else ""
    if caller is CallStyle.SYNC:
        return f"/predictions/{name}{f'/{tail}' if tail else ''}{query}"
    return f"/v1/models/{name}{f'/versions/{tail}' if tail else ''}/jobs{query}"
