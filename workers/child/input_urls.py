"""Fetches files that inputs name by URL, in the model's process: it has no credentials that an answer could be traded for.

Each URL is checked by the model's rules, its host is looked up once, and the request goes to the address that was checked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import cache
from threading import Lock, Thread
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

import httpx2
import msgspec

from penstock.errors import HandlerLoadError, InputUrlFailed, InvalidInput
from penstock.handlers.contract import Failure, failure_of
from penstock.inputs.file import OCTETS, File, fetching
from penstock.outbound import pinned
from penstock.outbound.pinned import Resolve, callable_addresses, resolve, send_pinned
from penstock.outbound.urls import CheckedUrl, is_listed, parse_url
from penstock.workers.ipc.frames import INPUT_READING_CODE, Item, JobFacts

MOST_BYTES = 32 * 1024 * 1024
MOST_FILES = 16
MOST_REDIRECTS = 3
# D150: how long a batch waits for files, how many inputs are read or kept for jobs of one owner and of all, and how long one is
# kept after its time.
GRACE_S = 0.2
OF_OWNER, IN_ALL = 32, 128
_KEPT_S = 30.0
# Only the look-up of a name takes longer than the time that a thread allows its files.
_MOST_TIMES = 1.5
_UNREAD = Failure("the files at the URLs of the input have not arrived", INPUT_READING_CODE)
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


class UrlReading(NamedTuple):
    """An input that a thread reads: of which attempt (job and number), and of whom. `began_at` is monotonic."""

    value: Future[Any]
    began_at: float
    attempt: tuple[str, int] = ("", 0)
    owner: str = ""


@dataclass(frozen=True, slots=True)
class UrlFetcher:
    """`rules` are the model's `input_urls`. The limits are for all files of one input together."""

    rules: Sequence[str]
    within_s: float
    most_bytes: int = MOST_BYTES
    ca: str = ""
    resolve: Resolve = resolve
    # Those of jobs. A place is held until the thread has ended, and its job has the input.
    _readings: dict[tuple[str, int], UrlReading] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def read_all(self, read: Callable[[Item], Any], items: Sequence[Item]) -> list[Any]:
        """`read` of each item. Those with URLs are read side by side, and one that takes too long fails alone.

        D150: what a job names is awaited for `GRACE_S`, and not at all while its owner has others that took longer. Its item
        then fails as unread, for the job to come again, and is read on.
        """
        named = {place: item for place, item in enumerate(items) if _SIGN in item.data}
        if any(item.facts is None or not item.facts.job for item in named.values()):
            return self._read_each(read, items, {place: self._start(read, item) for place, item in named.items()})
        with self._lock:
            late = self._late_owners(monotonic())
            readings = {place: self._reading(read, item, item.facts) for place, item in named.items() if item.facts}
        return self._read_each(read, items, readings, GRACE_S, late)

    def read_rows(self, read: Callable[[Any], Any], rows: Sequence[Any]) -> list[Any]:
        """The same for rows, which are plain values, and are awaited."""
        named = [place for place, row in enumerate(rows) if _SIGN in msgspec.msgpack.encode(row)]
        return self._read_each(read, rows, {place: self._start(read, rows[place]) for place in named})

    def _late_owners(self, now: float) -> set[str]:
        """Whose files are under way for longer than a batch waits. Inputs that no job came for are forgotten."""
        for one in list(self._readings.values()):
            if one.value.done() and one.began_at + self.within_s * _MOST_TIMES + _KEPT_S < now:
                del self._readings[one.attempt]
        return {one.owner for one in list(self._readings.values()) if not one.value.done() and one.began_at + GRACE_S < now}

    def _reading(self, read: Callable[[Item], Any], item: Item, facts: JobFacts) -> UrlReading:
        attempt, held = (facts.job, facts.attempt), [one.owner for one in list(self._readings.values())]
        if attempt not in self._readings:
            if len(held) >= IN_ALL or held.count(facts.owner) >= OF_OWNER:
                (refused := UrlReading(Future(), 0.0)).value.set_result(_UNREAD)
                return refused
            self._readings[attempt] = self._start(read, item, attempt, facts.owner)
        return self._readings[attempt]

    def _start(self, read: Callable[[Any], Any], item: Any, attempt: tuple[str, int] = ("", 0), owner: str = "") -> UrlReading:
        reading = UrlReading(Future(), monotonic(), attempt, owner)
        Thread(target=self._read, args=(read, item, reading.value), daemon=True).start()
        return reading

    def _read_each(
        self,
        read: Callable[[Any], Any],
        items: Sequence[Any],
        readings: Mapping[int, UrlReading],
        grace_s: float | None = None,
        late: Collection[str] = (),
    ) -> list[Any]:
        values = [None if place in readings else read(item) for place, item in enumerate(items)]
        most_s = self.within_s * _MOST_TIMES
        wait([one.value for one in readings.values() if one.owner not in late], most_s if grace_s is None else grace_s)
        for place, one in readings.items():
            if one.value.done():
                values[place] = one.value.result()
                self._readings.pop(one.attempt, None)
            else:
                is_over = grace_s is None or one.began_at + most_s < monotonic()
                values[place] = Failure(self.late, InputUrlFailed.kind, retryable=True) if is_over else _UNREAD
        return values

    def _read(self, read: Callable[[Any], Any], item: Any, value: Future[Any]) -> None:
        with fetching(InputFiles(self, monotonic() + self.within_s, self.most_bytes).fetch):
            try:
                value.set_result(read(item))
            except Exception as error:  # noqa: BLE001 - an error must not end with its thread
                value.set_result(failure_of(error))

    @property
    def late(self) -> str:
        return f"the files at the URLs of the input did not arrive within {self.within_s:g} s"

    async def addresses(self, url: CheckedUrl) -> list[str]:
        listed = is_listed(url, self.rules, refusal=_REFUSAL)
        return callable_addresses(url, await asyncio.to_thread(self.resolve, url.host, url.port), listed=listed)


# One for each process, because jobs come again.
fetcher_of = cache(UrlFetcher)


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
