"""Downloads of archives: from which URLs and addresses, and from a real server, bounded in time and in number."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from penstock.broker.blobs.space import DiskReserve
from penstock.errors import StorageFull
from penstock.extensions.torchserve.gateway.errors import TorchServeError
from penstock.extensions.torchserve.management.download import Downloader, DownloadLimits, allowed_url, file_name, is_remote
from penstock.outbound.urls import parse_url
from tests.eventually import eventually
from tests.extensions.torchserve.acceptance.management_stack import ArchiveServer, archive_server

URL = "http://10.0.0.5:8000/store/m.mar"


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
        [failed] = asyncio.run(_failures(site, tmp_path, within_s=0.5, count=1))
    assert failed.message.partition(" (")[2] == "it did not arrive within 0.5 s)"


def test_two_downloads_run_at_a_time(tmp_path: Path) -> None:
    with archive_server() as site:
        asyncio.run(_third_waits(site, tmp_path))


async def _failures(site: ArchiveServer, folder: Path, *, within_s: float, count: int) -> list[TorchServeError]:
    own, url = downloader(folder, within_s=within_s), site.put("m.mar", b"bytes" * 10)
    site.stalled.add("/m.mar")
    found = await asyncio.gather(*(fetch(own, url, folder / str(number)) for number in range(count)), return_exceptions=True)
    return [error for error in found if isinstance(error, TorchServeError)]


async def _third_waits(site: ArchiveServer, folder: Path) -> None:
    own, url, other = downloader(folder, within_s=30.0), site.put("m.mar", b"bytes" * 10), site.put("o.mar", b"other")
    site.stalled.add("/m.mar")
    fetches = [asyncio.create_task(fetch(own, url, folder / str(number))) for number in range(3)]
    await asyncio.to_thread(eventually, lambda: len(site.asked) == 2)
    # A whole download beside: the third would have asked by then.
    await fetch(downloader(folder, within_s=30.0), other, folder / "other")
    assert site.asked.count("/m.mar") == 2
    site.release.set()
    await asyncio.gather(*fetches, return_exceptions=True)
    assert site.asked.count("/m.mar") == 3


def test_a_disk_without_room_is_not_filled(tmp_path: Path) -> None:
    with archive_server() as site, pytest.raises(StorageFull):
        asyncio.run(fetch(downloader(tmp_path, reserve_bytes=1 << 60), site.put("m.mar", b"bytes"), tmp_path / "m"))
    assert not (tmp_path / "m").exists() or not (tmp_path / "m").read_bytes()


@pytest.mark.parametrize("patterns", [(), ("http://10.0.0.5:8000/store/",), ("https://.*",), (".*/other/.*",)])
def test_a_url_that_no_pattern_matches_as_a_whole_is_refused(patterns: tuple[str, ...]) -> None:
    with pytest.raises(TorchServeError) as refused:
        allowed_url(URL, [re.compile(pattern) for pattern in patterns])
    assert (refused.value.status, refused.value.name) == (404, "ModelNotFoundException")
    assert refused.value.message == f"Given URL {URL} does not match any allowed URL(s)"


@pytest.mark.parametrize(
    ("pattern", "spelled"),
    [
        (r"http://10\.0\.0\.5:8000/.*", True),
        (r"^http://10.0.0.5:8000/.*", True),
        (r"http(s)?://.*", False),
        (r"http://.*", False),
        (r"http://10.*", False),
        (r"http://[0-9.]+:8000/.*", False),
        (r"http://10.0.0.[5]:8000/.*", False),
        (r"http://10\.0\.0\.5:8000.*", False),
    ],
)
def test_only_a_host_that_a_pattern_spells_may_have_any_address(pattern: str, spelled: bool) -> None:
    assert allowed_url(URL, [re.compile(pattern)])[1] is spelled


def test_what_is_matched_but_is_no_plain_url_is_a_bad_request() -> None:
    for url in ("http://user:word@h/m.mar", "http://h/a b.mar", "http:///m.mar"):
        with pytest.raises(TorchServeError) as refused:
            allowed_url(url, [re.compile(".*")])
        assert refused.value.status == 400


@pytest.mark.parametrize("path", ["m.mar", "m.tar.gz", "M-1_2+x.tgz", "m.mar?signature=a/b"])
def test_the_archive_has_the_name_that_ends_the_path(path: str) -> None:
    assert file_name(parse_url(f"http://h/a/{path}")) == path.partition("?")[0]


@pytest.mark.parametrize("path", ["", "m", "m.py", "m.zip", ".mar", "a%2Fb.mar", "%2e%2e.mar", "-m.mar", "m%00.mar", "a/.mar"])
def test_a_path_that_ends_with_no_archive_is_refused(path: str) -> None:
    with pytest.raises((TorchServeError, Exception)) as refused:
        file_name(parse_url(f"http://h/a/{path}"))
    assert getattr(refused.value, "status", 400) == 400


def test_only_http_is_remote() -> None:
    assert is_remote("HTTPS://h/m.mar")
    assert not any(map(is_remote, ("m.mar", "file:///m.mar", "s3://b/m.mar")))
