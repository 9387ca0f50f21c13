"""Downloads of archives from a real server: bounded in time and in number."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.blobs.space import DiskReserve
from penstock.errors import StorageFull
from penstock.gateway.torchserve.errors import TorchServeError
from penstock.gateway.torchserve.management.download import Downloader, DownloadLimits
from penstock.outbound.urls import parse_url
from tests.acceptance.management_stack import ArchiveServer, archive_server


def downloader(folder: Path, *, within_s: float = 30.0, reserve_bytes: int = 0) -> Downloader:
    return Downloader(DownloadLimits(1_000, within_s), DiskReserve(folder, reserve_bytes))


async def fetch(own: Downloader, url: str, target: Path) -> None:
    await own.download(parse_url(url), target, listed=True)


def test_an_archive_is_written_as_it_came(tmp_path: Path) -> None:
    with archive_server() as site:
        asyncio.run(fetch(downloader(tmp_path), site.put("m.mar", b"bytes"), tmp_path / "m"))
    assert (tmp_path / "m").read_bytes() == b"bytes"


def test_a_server_that_stalls_holds_one_of_two_places_for_the_time_that_a_download_may_take(tmp_path: Path) -> None:
    with archive_server() as site:
        failed = asyncio.run(_three_at_once(site, tmp_path))
        assert len(site.asked) <= 2
    assert [error.message.partition(" (")[2] for error in failed] == ["it did not arrive within 0.5 s)"] * 3


async def _three_at_once(site: ArchiveServer, folder: Path) -> list[TorchServeError]:
    own, url = downloader(folder, within_s=0.5), site.put("m.mar", b"bytes" * 10)
    site.stalled.add("/m.mar")
    found = await asyncio.gather(*(fetch(own, url, folder / str(number)) for number in range(3)), return_exceptions=True)
    return [error for error in found if isinstance(error, TorchServeError)]


def test_a_disk_without_room_is_not_filled(tmp_path: Path) -> None:
    with archive_server() as site, pytest.raises(StorageFull):
        asyncio.run(fetch(downloader(tmp_path, reserve_bytes=1 << 60), site.put("m.mar", b"bytes"), tmp_path / "m"))
    assert not (tmp_path / "m").exists() or not (tmp_path / "m").read_bytes()
