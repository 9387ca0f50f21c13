"""Archives from servers elsewhere: which URLs are allowed, and a download that is bounded in size and time.

The address is checked before it is called; proxies are not used, and redirects are not followed.
"""

# D103: docs/design/protocols.md
from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import unquote

import httpx2

from penstock.broker.blobs.space import DiskReserve
from penstock.errors import InvalidInput, PenstockError
from penstock.extensions.torchserve.archives.kinds import ENDINGS, is_archive_file
from penstock.extensions.torchserve.gateway.errors import TorchServeError, bad_request
from penstock.outbound.pinned import Resolve, callable_addresses, resolve, send_pinned, trust
from penstock.outbound.urls import MAX_URL_CHARS, CheckedUrl, parse_url

_WORKFLOW = ".war"
_ENDINGS = tuple(ending for ending in ENDINGS if ending != _WORKFLOW)
_REMOTE = ("http://", "https://")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}")
# What the host of a URL is written with; in a pattern a dot stands for any letter, and is usually meant as a dot.
_SPELLED_HOST = re.compile(r"\^?(https?)://((?:[A-Za-z0-9.:-]|\\\.)+)/")


# Bytes that one call of a thread writes.
_PIECE_BYTES = 1024 * 1024
# Downloads that run at a time in one gateway process. The time of the others runs while they wait.
_AT_ONCE = 2


def is_remote(url: str) -> bool:
    return url.lower().startswith(_REMOTE)


def is_scheme(url: str) -> bool:
    """Whether this is a URL of another kind, such as file:// or s3://."""
    return "://" in url


def allowed_url(url: str, patterns: Sequence[re.Pattern[str]]) -> tuple[CheckedUrl, bool]:
    """The URL, and whether its host may have any address: a pattern spells the host out. Raises `TorchServeError`.

    If a pattern leaves the host open, only public addresses are called. Otherwise a caller could reach hosts that only this
    machine can reach.
    """
    if len(url) > MAX_URL_CHARS:
        raise not_allowed(url)
    matching = [pattern.pattern for pattern in patterns if pattern.fullmatch(url)]
    if not matching:
        raise not_allowed(url)
    try:
        checked = parse_url(url)
    except InvalidInput as error:
        raise bad_request(f"{error.message}: {url[:200]}") from error
    return checked, any(_spells(pattern, checked) for pattern in matching)


def not_allowed(url: str) -> TorchServeError:
    return TorchServeError(404, "ModelNotFoundException", f"Given URL {url[:200]} does not match any allowed URL(s)")


def file_name(url: CheckedUrl) -> str:
    """The name under which an archive is kept. Raises `TorchServeError` unless the path of the URL ends with one."""
    name = unquote(PurePosixPath(url.target.partition("?")[0]).name)
    if not _FILE_NAME.fullmatch(name) or not is_archive_file(name) or is_workflow(name):
        raise bad_request(f"The path of the URL {url} must end with the name of an archive: {', '.join(_ENDINGS)}.")
    return name


def is_workflow(name: str) -> bool:
    return name.lower().endswith(_WORKFLOW)


def _spells(pattern: str, url: CheckedUrl) -> bool:
    match = _SPELLED_HOST.match(pattern)
    return match is not None and (match[1], match[2].replace("\\.", ".").lower()) == (url.scheme, url.netloc)


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """`within_s`: seconds, the wait for its turn included."""

    max_bytes: int
    within_s: float


class Downloader:
    """`reserve` says whether a disk has room for what is still to come."""

    def __init__(self, limits: DownloadLimits, reserve: DiskReserve, *, resolve: Resolve = resolve) -> None:
        self._limits = limits
        self._reserve = reserve
        self._resolve = resolve
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def download(self, url: CheckedUrl, target: Path, *, listed: bool) -> None:
        """Write what the URL has into `target`. `listed`: its host may have any address. Raises `TorchServeError`, 400 for what
        the server, its name or its network does, and `StorageFull`.
        """
        try:
            async with asyncio.timeout(self._limits.within_s), self._turns:
                await self._download(url, target, listed=listed)
        except TimeoutError as error:
            raise _failed(url, f"it did not arrive within {self._limits.within_s:g} s") from error
        except InvalidInput as error:
            raise _failed(url, error.message) from error
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise _failed(url, type(error).__name__) from error

    async def _download(self, url: CheckedUrl, target: Path, *, listed: bool) -> None:
        addresses = callable_addresses(url, await asyncio.to_thread(self._resolve, url.host, url.port), listed=listed)
        # A server that sends nothing for this long would hold one of the few places.
        stall_s = min(30.0, self._limits.within_s)
        async with httpx2.AsyncClient(verify=trust(""), trust_env=False) as client:
            answer = await send_pinned(client, "GET", url, addresses, within_s=stall_s)
            try:
                self._check(url, answer)
                with target.open("wb") as file:
                    await self._write(url, answer, file)
            finally:
                await answer.aclose()

    def _check(self, url: CheckedUrl, answer: httpx2.Response) -> None:
        if answer.has_redirect_location:
            raise _failed(url, "its server redirects, which is not followed; name the URL that it redirects to")
        if answer.status_code != 200:
            raise _failed(url, f"its server answers {answer.status_code}")
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise _failed(url, "its server sends a compressed body, which is not inflated")
        length = answer.headers.get("content-length", "")
        if length.isdecimal():
            self._check_size(url, int(length))
            self._reserve.require(int(length))

    async def _write(self, url: CheckedUrl, answer: httpx2.Response, file: BinaryIO) -> None:
        size, piece = 0, bytearray()
        async for chunk in answer.aiter_raw():
            size += len(chunk)
            self._check_size(url, size)
            piece += chunk
            if len(piece) >= _PIECE_BYTES:
                await asyncio.to_thread(self._write_piece, file, bytes(piece))
                piece.clear()
        await asyncio.to_thread(self._write_piece, file, bytes(piece))

    def _write_piece(self, file: BinaryIO, piece: bytes) -> None:
        self._reserve.require(len(piece))
        file.write(piece)

    def _check_size(self, url: CheckedUrl, size: int) -> None:
        if size > self._limits.max_bytes:
            raise _failed(url, f"it has more than torchserve.max_archive_bytes, {self._limits.max_bytes}")


def _failed(url: CheckedUrl, why: str) -> PenstockError:
    return TorchServeError(400, "DownloadArchiveException", f"Failed to download archive from: {url} ({why})")
