"""Fetches files that inputs name by URL, in the model's process: it has no credentials that an answer could be traded for.

Each URL is checked by the model's rules, its host is looked up once, and the request goes to the address that was checked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Thread
from time import monotonic
from typing import Any
from urllib.parse import unquote, urljoin

import httpx2
import msgspec

from penstock.errors import HandlerLoadError, InputUrlFailed, InvalidInput
from penstock.handlers.contract import Failure, failure_of
from penstock.inputs.file import OCTETS, File, fetching
from penstock.outbound import pinned
from penstock.outbound.pinned import Resolve, callable_addresses, resolve, send_pinned
from penstock.outbound.urls import CheckedUrl, is_listed, parse_url
from penstock.workers.ipc.frames import Item

MOST_BYTES = 32 * 1024 * 1024
MOST_FILES = 16
MOST_REDIRECTS = 3
# An input without these letters has no URL; one with them may have none either.
_SIGN = b"http"
_REFUSAL = "the model's settings do not allow the URL {url}; send the file in a form, or as base64"


def trust(ca: str) -> ssl.SSLContext:
    """As `penstock.outbound.pinned` has it; raises `HandlerLoadError`."""
    try:
        return pinned.trust(ca)
    except OSError as error:
        raise HandlerLoadError(
            f"input_urls_ca: no certificates can be read from {ca}: {error.strerror or error}; name a file in PEM"
        ) from error


@dataclass(frozen=True, slots=True)
class UrlFetcher:
    """`rules` are the model's `input_urls`. The limits are for all files of one input together."""

    rules: Sequence[str]
    within_s: float
    most_bytes: int = MOST_BYTES
    ca: str = ""
    resolve: Resolve = resolve

    def read_all(self, read: Callable[[Item], Any], items: Sequence[Item]) -> list[Any]:
        """`read` of each item. Those with URLs are read side by side, and one that takes too long fails alone."""
        return self._read_each(read, items, [_SIGN in item.data for item in items])

    def read_rows(self, read: Callable[[Any], Any], rows: Sequence[Any]) -> list[Any]:
        """The same for rows, which are plain values."""
        return self._read_each(read, rows, [_SIGN in msgspec.msgpack.encode(row) for row in rows])

    def _read_each(self, read: Callable[[Any], Any], items: Sequence[Any], has_url: Sequence[bool]) -> list[Any]:
        values: list[Any] = [Failure(self.late, InputUrlFailed.kind, retryable=True)] * len(items)
        threads: list[Thread] = []
        for place, item in enumerate(items):
            if has_url[place]:
                threads.append(Thread(target=self._read, args=(read, item, values, place), daemon=True))
                threads[-1].start()
            else:
                values[place] = read(item)
        # Only the look-up of a name takes longer than the time that a thread allows its files.
        give_up_at = monotonic() + self.within_s * 1.5
        for thread in threads:
            thread.join(max(0.0, give_up_at - monotonic()))
        # A thread that is late changes its own list only.
        return list(values)

    def _read(self, read: Callable[[Any], Any], item: Any, values: list[Any], place: int) -> None:
        with fetching(InputFiles(self, monotonic() + self.within_s, self.most_bytes).fetch):
            try:
                values[place] = read(item)
            except Exception as error:  # noqa: BLE001 - an error must not end with its thread
                values[place] = failure_of(error)

    @property
    def late(self) -> str:
        return f"the files at the URLs of the input did not arrive within {self.within_s:g} s"

    async def addresses(self, url: CheckedUrl) -> list[str]:
        listed = is_listed(url, self.rules, refusal=_REFUSAL)
        return callable_addresses(url, await asyncio.to_thread(self.resolve, url.host, url.port), listed=listed)


@dataclass(slots=True)
class InputFiles:
    """The files of one input. A body that does not fit its type is read twice, and its files are fetched once."""

    fetcher: UrlFetcher
    give_up_at: float
    bytes_left: int
    known: dict[str, File] = field(default_factory=dict)

    def fetch(self, text: str) -> File:
        """Raises `InvalidInput` for a URL that may not be or cannot be fetched, `InputUrlFailed` where a later try may help."""
        if text not in self.known:
            if len(self.known) == MOST_FILES:
                raise InvalidInput(f"the input names more than {MOST_FILES} URLs")
            self.known[text] = asyncio.run(self._within_time(parse_url(text)))
        return self.known[text]

    async def _within_time(self, url: CheckedUrl) -> File:
        try:
            async with asyncio.timeout(self.give_up_at - monotonic()):
                return await self._follow(url)
        except TimeoutError as error:
            raise InputUrlFailed(self.fetcher.late) from error

    async def _follow(self, url: CheckedUrl) -> File:
        # A client for each file, so that no cookie of one server reaches another one.
        async with httpx2.AsyncClient(verify=trust(self.fetcher.ca), trust_env=False) as client:
            for _ in range(MOST_REDIRECTS + 1):
                answer = await self._ask(client, url)
                if isinstance(answer, File):
                    return answer
                url = answer
        raise InvalidInput(f"{url} is redirected more than {MOST_REDIRECTS} times")

    async def _ask(self, client: httpx2.AsyncClient, url: CheckedUrl) -> File | CheckedUrl:
        """The file, or where it is to be asked for instead."""
        addresses = await self.fetcher.addresses(url)
        try:
            answer = await send_pinned(client, "GET", url, addresses, within_s=self.fetcher.within_s)
            if answer.has_redirect_location:
                return _redirected(url, answer.headers["location"])
            _check(url, answer)
            return await self._file(url, answer)
        except (httpx2.TransportError, httpx2.StreamError) as error:
            if (refused := _refused_certificate(error)) is not None:
                raise InvalidInput(
                    f"{url} is not fetched, because the certificate of {url.host} is not trusted: {refused.verify_message}; "
                    "the operator of the model may name its authority in input_urls_ca"
                ) from error
            raise InputUrlFailed(f"{url} cannot be fetched: {type(error).__name__}") from error

    async def _file(self, url: CheckedUrl, answer: httpx2.Response) -> File:
        data = bytearray()
        async for chunk in answer.aiter_raw():
            data += chunk
            if len(data) > self.bytes_left:
                raise InvalidInput(
                    f"the files at the URLs of the input have more than {self.fetcher.most_bytes} bytes together"
                )
        self.bytes_left -= len(data)
        name = unquote(url.target.partition("?")[0].rpartition("/")[2])
        return File(data, answer.headers.get("content-type") or OCTETS, name)


def _refused_certificate(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def _redirected(url: CheckedUrl, location: str) -> CheckedUrl:
    target = parse_url(urljoin(f"{url.scheme}://{url.netloc}{url.target}", location))
    if target.origin != url.origin:
        raise InvalidInput(f"{url} is redirected to another host, which is not followed")
    return target


def _check(url: CheckedUrl, answer: httpx2.Response) -> None:
    status = answer.status_code
    if status >= 500 or status in (408, 425, 429):
        raise InputUrlFailed(f"the server of {url} answers {status}")
    if not answer.is_success:
        raise InvalidInput(f"the server of {url} answers {status}")
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        raise InvalidInput(f"the server of {url} sends a compressed body, which is not inflated")
