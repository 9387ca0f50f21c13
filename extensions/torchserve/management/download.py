"""An archive from a server elsewhere: from a checked address, without proxies and redirects, bounded in size and time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2

from penstock.broker.blobs.space import DiskReserve
from penstock.errors import InvalidInput, PenstockError
from penstock.extensions.torchserve.gateway.errors import TorchServeError
from penstock.outbound.pinned import Resolve, address_of, pinned_request, resolve, trust
from penstock.outbound.urls import CheckedUrl

# So many bytes are written in one call of a thread.
_PIECE_BYTES = 1024 * 1024
# So many downloads run at a time in one gateway process; the others wait, and their time runs.
_AT_ONCE = 2


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
        address = await address_of(url, listed=listed, resolve=self._resolve)
        # A server that sends nothing for so long holds one of the few places.
        stall_s = min(30.0, self._limits.within_s)
        async with httpx2.AsyncClient(verify=trust(""), trust_env=False, timeout=stall_s) as client:
            answer = await client.send(pinned_request(client, "GET", url, address), stream=True, follow_redirects=False)
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
