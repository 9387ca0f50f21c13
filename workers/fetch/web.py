"""Files over HTTP: one connection, redirects, a time-out without progress, and refusals in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx2

from penstock.settings.keys import is_loopback
from penstock.settings.remote_sources import RemoteSource
from penstock.workers.fetch.origin import FetchFailed, FileBytes, Listing, OriginAway, RemoteFile

_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
# Marks a request whose first address is on this machine.
BEGAN_HERE = "began_here"
_RANGE = re.compile(r"bytes (\d+)-\d*/(\d+)")


class Web:
    """`stall_s`: how long a server may send nothing. `headers` go to the host of the first request and to none that it
    redirects to.
    """

    def __init__(self, *, stall_s: float) -> None:
        # httpx takes the header `authorization` off a request that is redirected to another host.
        self._client = httpx2.Client(
            timeout=httpx2.Timeout(stall_s), follow_redirects=True, event_hooks={"request": [refuse_unsafe]}
        )
        self._stall_s = stall_s

    def json(self, url: str, headers: Mapping[str, str], *, what: str) -> Any:
        with self._stream(url, headers, what=what) as answer:
            try:
                answer.read()
                return answer.json()
            except ValueError as error:
                raise FetchFailed(f"{what}: the answer of {_host(url)} is no JSON; is this the right server?") from error

    def size_of(self, url: str, headers: Mapping[str, str], *, what: str) -> int:
        """Asked by a GET of one byte: an address that is signed for GET refuses a HEAD."""
        with self._stream(url, {**headers, "range": "bytes=0-0"}, what=what) as answer:
            match = _RANGE.fullmatch(answer.headers.get("content-range", ""))
            size = match[2] if match else answer.headers.get("content-length", "")
        if not size.isdecimal():
            raise FetchFailed(f"{what}: the server does not say how large the file is")
        return int(size)

    @contextmanager
    def read(self, url: str, headers: Mapping[str, str], start: int, *, what: str) -> Iterator[FileBytes]:
        # Without `identity` a server may compress, and a range would count compressed bytes.
        asked = {**headers, "accept-encoding": "identity", **({"range": f"bytes={start}-"} if start else {})}
        with self._stream(url, asked, what=what) as answer:
            match = _RANGE.fullmatch(answer.headers.get("content-range", "")) if answer.status_code == 206 else None
            yield FileBytes(int(match[1]) if match else 0, self._chunks(answer, what))

    def _chunks(self, answer: httpx2.Response, what: str) -> Iterator[bytes]:
        with self._faults(what):
            # In the chunks in which they arrive: a larger chunk would be lost whole if the connection breaks.
            yield from answer.iter_raw()

    @contextmanager
    def _stream(self, url: str, headers: Mapping[str, str], *, what: str) -> Iterator[httpx2.Response]:
        with self._faults(what), self._asked(url, headers) as answer:
            _check_status(answer, what)
            yield answer

    def _asked(self, url: str, headers: Mapping[str, str]) -> AbstractContextManager[httpx2.Response]:
        # Redirects inherit the extensions of their first request.
        return self._client.stream("GET", url, headers=dict(headers), extensions={BEGAN_HERE: is_loopback(_host(url))})

    @contextmanager
    def _faults(self, what: str) -> Iterator[None]:
        try:
            yield
        except httpx2.TimeoutException as error:
            raise OriginAway(f"{what}: nothing came for {self._stall_s:g} s") from error
        except (httpx2.TransportError, httpx2.StreamError) as error:
            raise OriginAway(f"{what}: {type(error).__name__}: {error}") from error
        except httpx2.TooManyRedirects as error:
            raise FetchFailed(f"{what}: the server redirects in a circle") from error

    def close(self) -> None:
        self._client.close()


class UrlOrigin:
    """One file at a URL. Its checksum is in the source, so that nothing has to be looked up."""

    def __init__(self, web: Web) -> None:
        self._web = web

    def look(self, source: RemoteSource) -> Listing:
        return Listing("", (RemoteFile(source.file, None, "sha256", source.sha256),))

    def size_of(self, source: RemoteSource, file: RemoteFile) -> int:
        return self._web.size_of(source.location, {}, what=str(source))

    @contextmanager
    def read(self, source: RemoteSource, file: RemoteFile, start: int) -> Iterator[FileBytes]:
        with self._web.read(source.location, {}, start, what=str(source)) as part:
            yield part


def _check_status(answer: httpx2.Response, what: str) -> None:
    status = answer.status_code
    if answer.is_success:
        return
    if status in _TRY_AGAIN:
        raise OriginAway(f"{what}: the server answers {status} {answer.reason_phrase}")
    if status in (401, 403):
        raise FetchFailed(
            f"{what}: the server answers {status}: it wants a token, or this one may not read it", hint=TOKEN_HINT
        )
    if status == 404:
        raise FetchFailed(f"{what}: the server answers 404: there is no such repository, revision or file", hint=ABSENT_HINT)
    raise FetchFailed(f"{what}: the server answers {status} {answer.reason_phrase}")


TOKEN_HINT = (
    "for hf://, set HF_TOKEN in the environment of the worker, and accept the conditions of the repository, if it has any"
)
ABSENT_HINT = "check the spelling of the source; a private repository answers the same without HF_TOKEN"


def refuse_unsafe(request: httpx2.Request) -> None:
    """Called for each request, so also for each redirect. Raises `FetchFailed`."""
    host, is_local = request.url.host, is_loopback(request.url.host)
    if request.url.scheme != "https" and not is_local:
        raise FetchFailed(f"{host} is reached over plain http, where others can change what it sends; only https is used")
    if is_local and not request.extensions.get(BEGAN_HERE):
        raise FetchFailed(f"a server elsewhere redirects to {host}, which is this machine; that is not followed")


def _host(url: str) -> str:
    return httpx2.URL(url).host
