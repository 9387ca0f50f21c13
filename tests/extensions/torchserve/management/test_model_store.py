"""The model store: what a registration may name in it, and which downloaded archives are removed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from penstock.broker.blobs.space import DiskReserve
from penstock.extensions.torchserve.gateway.errors import TorchServeError
from penstock.extensions.torchserve.management.download import Downloader, DownloadLimits
from penstock.extensions.torchserve.management.model_store import DOWNLOADS, UNFINISHED_S, UNUSED_S, ModelStore, remove_unused
from tests import archives


def store_of(folder: Path | None) -> ModelStore:
    return ModelStore(folder, (), Downloader(DownloadLimits(1_000, 1.0), DiskReserve(None, 0)))


def source(store: ModelStore, url: str) -> str:
    return asyncio.run(store.source_of(url))


def test_files_and_folders_of_the_store_are_named_by_their_path_below_it(tmp_path: Path) -> None:
    archives.mar(tmp_path / "sub" / "m.mar")
    archives.folder(tmp_path / "flat")
    store = store_of(tmp_path)
    assert [source(store, url) for url in ("sub/m.mar", "flat", "flat/")] == ["sub/m.mar", "flat/", "flat/"]
    found = asyncio.run(store.contents("flat/"))
    assert found is not None
    assert found.manifest.name == "noop"


@pytest.mark.parametrize(
    "url", ["no.mar", "/etc/passwd", ".", "./", "out/passwd", "sub/../m.mar", "x" * 5_000, "a\0b", "s3://b/m.mar"]
)
def test_everything_else_is_not_found(tmp_path: Path, url: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "out").symlink_to("/etc")
    with pytest.raises(TorchServeError) as refused:
        source(store_of(tmp_path / "store"), url)
    assert (refused.value.status, refused.value.name) == (404, "ModelNotFoundException")


def test_a_workflow_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "w.war").write_bytes(b"")
    with pytest.raises(TorchServeError, match="is a workflow") as refused:
        asyncio.run(store_of(tmp_path).model_source_of("w.war"))
    assert refused.value.status == 400
    assert source(store_of(tmp_path), "w.war") == "w.war"


def test_a_gateway_without_a_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(TorchServeError, match="model_store is not set"):
        source(store_of(None), "m.mar")


def test_a_broken_archive_is_refused_without_the_paths_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "cut.mar").write_bytes(archives.mar(tmp_path / "m.mar").read_bytes()[:200])
    with pytest.raises(TorchServeError) as refused:
        asyncio.run(store_of(tmp_path).contents("cut.mar"))
    assert (refused.value.status, refused.value.name) == (400, "InvalidModelException")
    assert str(tmp_path) not in refused.value.message


def downloaded(folder: Path, name: str) -> Path:
    archives.mar(folder / DOWNLOADS / name / "m.mar")
    return folder / DOWNLOADS / name


def test_what_no_model_names_any_more_is_removed_after_a_while(tmp_path: Path) -> None:
    used, unused, renewed = (downloaded(tmp_path, name) for name in ("used", "unused", "renewed"))
    sources = [f"{DOWNLOADS}/used/m.mar", "m.mar"]
    seen = remove_unused(tmp_path / DOWNLOADS, sources, {}, now=5.0)
    # A model may just be about to be stored that names it.
    assert all(entry.exists() for entry in (used, unused, renewed))
    os.utime(renewed, (1.0, 1.0))
    seen = remove_unused(tmp_path / DOWNLOADS, sources, seen, now=5.0 + UNUSED_S)
    assert [entry.exists() for entry in (used, unused, renewed)] == [True, False, True]
    assert set(remove_unused(tmp_path / DOWNLOADS, sources, seen, now=6.0 + UNUSED_S)) == {"renewed"}


def test_a_download_that_its_process_left_is_removed_later(tmp_path: Path) -> None:
    part = downloaded(tmp_path, ".part-1")
    seen = remove_unused(tmp_path / DOWNLOADS, (), {}, now=0.0)
    seen = remove_unused(tmp_path / DOWNLOADS, (), seen, now=UNUSED_S)
    assert part.exists()
    remove_unused(tmp_path / DOWNLOADS, (), seen, now=UNFINISHED_S)
    assert not part.exists()


def test_an_archive_that_a_model_names_again_counts_as_new(tmp_path: Path) -> None:
    downloaded(tmp_path, "m")
    seen = remove_unused(tmp_path / DOWNLOADS, (), {}, now=0.0)
    assert remove_unused(tmp_path / DOWNLOADS, [f"{DOWNLOADS}/m/m.mar"], seen, now=1.0) == {}


def test_a_store_into_which_nothing_was_downloaded_is_left_alone(tmp_path: Path) -> None:
    assert remove_unused(tmp_path / DOWNLOADS, (), {}, now=0.0) == {}
