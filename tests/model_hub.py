"""A model hub on this machine, with a second server for the large files as hubs have, and what can go wrong with either."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

# Files of this size and more are kept by the second server, under their SHA-256.
LARGE_BYTES = 1_000


@dataclass
class Asked:
    """One request: which server, which path, from which byte, with which token."""

    server: str
    path: str
    first: int
    token: str


@dataclass
class Hub:
    """`repos`: files by repository and commit; `branches`: the commit of each.

    Faults: the connection ends after `cut_after` bytes of a file, once for each number; beyond byte `silent_after` of a file
    nothing is sent until `speak` is set; who has not `token` gets 401; a chunk of 64 KiB takes `pace_s`.
    """

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    plain: dict[str, bytes] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    silent_after: int | None = None
    speak: threading.Event = field(default_factory=threading.Event)
    token: str = ""
    pace_s: float = 0.0
    takes_ranges: bool = True
    url: str = ""
    large_url: str = ""

    def push(self, repo: str, files: dict[str, bytes], *, branch: str = "main") -> str:
        """Make a commit, and let the branch point to it."""
        names = sorted((name, hashlib.sha256(data).hexdigest()) for name, data in files.items())
        commit = hashlib.sha1(json.dumps([repo, names]).encode()).hexdigest()
        self.repos.setdefault(repo, {})[commit] = files
        self.branches.setdefault(repo, {})[branch] = commit
        return commit

    def gets(self, ending: str) -> list[Asked]:
        """The requests for a file's bytes, wherever they went."""
        return [one for one in self.asked if one.path.endswith(ending)]

    def files(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commit = self.branches.get(repo, {}).get(revision, revision)
        found = self.repos.get(repo, {}).get(commit)
        return None if found is None else (commit, found)


@contextmanager
def model_hub() -> Iterator[Hub]:
    hub = Hub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, name)) for name in ("hub", "large")]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    # Two names of one machine are two hosts to whoever keeps a token for one of them.
    hub.url = f"http://127.0.0.1:{servers[0].server_address[1]}"
    hub.large_url = f"http://localhost:{servers[1].server_address[1]}"
    try:
        yield hub
    finally:
        hub.speak.set()
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(hub: Hub, server: str) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub, Handler.name = hub, server
    return Handler


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    name: str
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        given = self.headers.get("range", "")
        first = int(given.removeprefix("bytes=").partition("-")[0]) if given else 0
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(Asked(self.name, path, first, self.headers.get("authorization", "")))
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        is_open = self.name == "large" or path in hub.plain or not hub.token
        if not is_open and self.headers.get("authorization") != f"Bearer {hub.token}":
            return self._send(401, b"who are you?", with_body=with_body)
        if self.name == "large" or path in hub.plain:
            return self._file(hub.plain.get(path) or self._large(path), {}, with_body=with_body)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self._api("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main", with_body=with_body)
        if len(parts) >= 5 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]), with_body=with_body)
        return self._send(404, b"", with_body=with_body)

    def _api(self, repo: str, revision: str, *, with_body: bool) -> None:
        found = self.hub.files(repo, revision)
        if found is None:
            return self._send(404, b'{"error":"Repository not found"}', with_body=with_body)
        commit, files = found
        siblings = [_sibling(name, data) for name, data in files.items()]
        body = json.dumps({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": [], "downloads": 0})
        return self._send(200, body.encode(), {"content-type": "application/json"}, with_body=with_body)

    def _resolve(self, repo: str, revision: str, path: str, *, with_body: bool) -> None:
        found = self.hub.files(repo, revision)
        if found is None or path not in found[1]:
            code = "EntryNotFound" if found else "RevisionNotFound"
            return self._send(404, b"", {"x-error-code": code}, with_body=with_body)
        data, headers = found[1][path], {"x-repo-commit": found[0]}
        if len(data) < LARGE_BYTES:
            return self._file(data, {**headers, "etag": f'"{_blob_id(data)}"'}, with_body=with_body)
        digest = hashlib.sha256(data).hexdigest()
        where = f"{self.hub.large_url}/{digest}/{path}?signature=secret-of-the-address"
        linked = {"x-linked-etag": f'"{digest}"', "x-linked-size": str(len(data)), "location": where}
        return self._send(302, b"", {**headers, **linked}, with_body=with_body)

    def _large(self, path: str) -> bytes | None:
        digest = path.split("/")[1]
        every = (data for commits in self.hub.repos.values() for files in commits.values() for data in files.values())
        return next((data for data in every if hashlib.sha256(data).hexdigest() == digest), None)

    def _file(self, data: bytes | None, headers: dict[str, str], *, with_body: bool) -> None:
        if data is None:
            return self._send(404, b"", with_body=with_body)
        given = self.headers.get("range", "") if self.hub.takes_ranges else ""
        if not given:
            return self._send(200, data, {"accept-ranges": "bytes", **headers}, with_body=with_body)
        first, _, last = given.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        span = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        return self._send(206, part, {**headers, "content-range": span}, with_body=with_body, first=int(first))

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, with_body: bool, first: int = 0
    ) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self._write(body, first)

    def _write(self, body: bytes, first: int) -> None:
        """A body of more than one byte meets the faults; a question for the size does not."""
        hub, sent = self.hub, first
        cut = hub.cut_after.pop(0) if hub.cut_after and len(body) > max(LARGE_BYTES, hub.cut_after[0]) else len(body)
        for at in range(0, cut, 65_536):
            part = body[at : min(at + 65_536, cut)]
            if hub.silent_after is not None and sent + len(part) > hub.silent_after:
                self.wfile.write(part[: max(0, hub.silent_after - sent)])
                hub.speak.wait(60)
                self.close_connection = True
                return
            self.wfile.write(part)
            sent += len(part)
            if hub.pace_s:
                time.sleep(hub.pace_s)
        if cut < len(body):
            self.close_connection = True


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": _blob_id(data)}
    if len(data) >= LARGE_BYTES:
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
