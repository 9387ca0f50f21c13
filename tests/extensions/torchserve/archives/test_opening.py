"""Archives are read and unpacked whatever their form, and what is unsafe or damaged is refused as a whole."""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import BadArchive, DiskFull
from penstock.extensions.torchserve.archives.contents import read_archive
from penstock.extensions.torchserve.archives.kinds import archive_stem, is_archive
from penstock.extensions.torchserve.archives.members import ArchiveLimits
from penstock.extensions.torchserve.archives.opening import opened
from penstock.model_cache.room import CacheRoom
from tests import archives

pytestmark = pytest.mark.filterwarnings("ignore:Duplicate name")


@pytest.mark.parametrize("form", ["noop.mar", "noop.tar.gz", "noop.tgz", "folder"])
def test_every_form_opens_as_a_folder_with_the_files_of_the_model(tmp_path: Path, form: str) -> None:
    content = archives.files(config="batchSize: 8\nhandler: {top: 5}\n", extra={"sub/labels.json": "{}"})
    make: Callable[..., Path] = {"mar": archives.mar, "folder": archives.folder}.get(form.rpartition(".")[2], archives.tgz)
    path = make(tmp_path / form, content)
    found = opened(path, tmp_path / "cache")
    assert (found.folder / "noop.py").read_text() == archives.HANDLER
    assert (found.folder / "sub/labels.json").is_file()
    assert found.config == {"batchSize": 8, "handler": {"top": 5}}
    assert (found.manifest.name, found.manifest.handler, found.manifest.version) == ("noop", "noop.py", "1.0")
    seen = read_archive(path)
    assert (seen.manifest, seen.config) == (found.manifest, found.config)
    assert seen.has("sub/labels.json")
    assert not seen.has("absent.py")
    assert is_archive(str(path))


def test_an_archive_is_unpacked_once_per_content_and_stays_as_its_handler_left_it(tmp_path: Path) -> None:
    path = archives.mar(tmp_path / "noop.mar", archives.files(extra={"labels.json": "{}"}))
    first = opened(path, tmp_path / "cache")
    (first.folder / "written_by_the_handler").touch()
    again = opened(tmp_path / "noop.mar", tmp_path / "cache")
    assert again == first
    assert (again.folder / "written_by_the_handler").exists()
    assert first.lock is not None
    assert again.lock is not None
    (first.folder / "labels.json").unlink()
    first.lock.close()
    # Another process may use what is left.
    assert not (opened(tmp_path / "noop.mar", tmp_path / "cache").folder / "labels.json").exists()
    changed = opened(archives.mar(tmp_path / "noop.mar", archives.files(extra={"new": "1"})), tmp_path / "cache")
    assert changed.folder != first.folder


def test_a_folder_is_used_in_place(tmp_path: Path) -> None:
    found = opened(archives.folder(tmp_path / "noop"), tmp_path / "cache")
    assert found.folder == tmp_path / "noop"
    assert not (tmp_path / "cache").exists()


def test_an_archive_without_a_manifest_is_named_after_its_file_and_takes_the_handler_that_is_named(tmp_path: Path) -> None:
    path = archives.mar(tmp_path / "squares.mar", {"serve.py": archives.HANDLER})
    with pytest.raises(BadArchive, match="it names no handler"):
        opened(path, tmp_path / "cache")
    found = opened(path, tmp_path / "cache", handler="serve.py:handle").manifest
    assert (found.name, found.version, found.handler) == ("squares", "1.0", "serve.py:handle")
    assert found.whole["model"]["modelName"] == "squares"


def test_a_model_larger_than_the_cache_may_be_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    path = archives.mar(tmp_path / "noop.mar", archives.files(extra={"weights.pt": bytes(2000)}))
    with pytest.raises(DiskFull, match="the models' cache may have 1"):
        opened(path, tmp_path / "cache", max_bytes=1024)


UNSAFE = {
    "../evil.py": "would lie outside the model's folder",
    "a/../../evil.py": "would lie outside the model's folder",
    "/etc/cron.d/evil": "an absolute path",
    "C:/evil.py": "an absolute path",
    "..\\evil.py": "a character in its name that means something else elsewhere",
    "line\nbreak.py": "a character in its name that means something else elsewhere",
    "a//b.py": "an empty part in its path",
    "a/./b.py": "an empty part in its path",
    "noop.py": "is in it twice",
    "NOOP.PY": "differ in upper and lower case",
    "noop.py/below": "is a file and a folder",
    "long" * 100: "a longer name than 255 bytes",
    "/".join(["deep"] * 300): "a longer path than 1024",
}


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("pack", [archives.mar, archives.tgz], ids=["zip", "tar"])
def test_an_unsafe_path_refuses_the_whole_archive(tmp_path: Path, name: str, pack: Callable[..., Path]) -> None:
    path = tmp_path / ("bad.mar" if pack is archives.mar else "bad.tar.gz")
    if pack is archives.mar:
        archives.mar(path)
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "a") as zipped:
            zipped.writestr(name, "evil")
    else:
        with tarfile.open(path, "w:gz") as tarred:
            for good, data in archives.files().items():
                archives.put(tarred, good, data)
            archives.put(tarred, name, "evil")
    refused(path, tmp_path, UNSAFE[name])


def refused(path: Path, tmp_path: Path, why: str) -> None:
    """Nothing of the archive is left anywhere, and the error says why and what to do."""
    with pytest.raises(BadArchive) as error:
        opened(path, tmp_path / "cache")
    assert why in error.value.message
    assert str(path) in error.value.message
    assert error.value.hint
    with pytest.raises(BadArchive):
        read_archive(path)
    left = [file.name for file in (tmp_path / "cache").rglob("*.py")] if (tmp_path / "cache").exists() else []
    assert left == []
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize(("mode", "what"), [(stat.S_IFLNK, "is a link"), (stat.S_IFCHR, "is a device"), (stat.S_IFIFO, "pipe")])
def test_a_zip_with_a_link_or_a_device_is_refused(tmp_path: Path, mode: int, what: str) -> None:
    refused(archives.zip_special(tmp_path / "bad.mar", "passwords", mode), tmp_path, what)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "is a link"),
        (tarfile.LNKTYPE, "is a link"),
        (tarfile.CHRTYPE, "is a device"),
        (tarfile.FIFOTYPE, "pipe"),
    ],
)
def test_a_tar_with_a_link_or_a_device_is_refused(tmp_path: Path, kind: bytes, what: str) -> None:
    path = tmp_path / "bad.tar.gz"
    with tarfile.open(path, "w:gz") as tarred:
        archives.put(tarred, "noop/passwords", type=kind, linkname="/etc/passwd")
    refused(path, tmp_path, what)


def test_bombs_are_refused_by_what_comes_out_of_them(tmp_path: Path) -> None:
    limits = ArchiveLimits(max_ratio=10, free_ratio_bytes=1 << 20)
    zeros = archives.files(extra={"zeros": bytes(4 << 20)})
    for path in (archives.mar(tmp_path / "bomb.mar", zeros), archives.tgz(tmp_path / "bomb.tar.gz", zeros)):
        with pytest.raises(BadArchive, match="which no model does"):
            read_archive(path, limits=limits)
    with pytest.raises(BadArchive, match="more than 3 members"):
        read_archive(archives.mar(tmp_path / "many.mar", archives.files(extra={"a": "", "b": ""})), limits=ArchiveLimits(3))


def test_a_tar_whose_note_is_a_bomb_takes_no_memory_for_it(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    path = archives.gzipped(tmp_path / "bad.tar.gz", info.tobuf() + bytes(4096))
    refused(path, tmp_path, "one of its headers has 1,073,741,824 bytes")


def test_a_zip_that_lies_about_a_size_is_refused(tmp_path: Path) -> None:
    path = archives.mar(tmp_path / "bad.mar", archives.files(extra={"last": "x" * 1000}))
    raw = bytearray(path.read_bytes())
    at = raw.rfind(b"PK\x01\x02") + 24
    raw[at : at + 4] = struct.pack("<I", 10)
    path.write_bytes(raw)
    with pytest.raises(BadArchive, match=r"cannot be read: .*CRC"):
        opened(path, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("noop.py"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"<html>", "is neither a zip nor a gzip file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of git-lfs"),
    ],
)
def test_a_file_that_is_no_archive_is_said_to_be_none(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "bad.mar"
    path.write_bytes(content)
    refused(path, tmp_path, why)


def test_a_tar_that_ends_early_inside_a_whole_gzip_file_is_refused(tmp_path: Path) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tarred:
        for name, data in archives.files().items():
            archives.put(tarred, f"noop/{name}", data)
    whole = raw.getvalue()
    refused(
        archives.gzipped(tmp_path / "cut.tar.gz", whole[: whole.find(bytes(1024)) // 512 * 512]), tmp_path, "cannot be read"
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("name", ["whole.mar", "whole.tar.gz"])
def test_whatever_happens_to_an_archives_bytes_it_opens_as_it_was_or_is_refused(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    path = tmp_path / name
    if not path.exists():
        (archives.mar if name.endswith("mar") else archives.tgz)(path)
        (tmp_path / f"{name}.good").write_bytes(path.read_bytes())
    raw = bytearray((tmp_path / f"{name}.good").read_bytes())
    cut = data.draw(st.integers(0, len(raw)))
    damaged = raw[:cut] if data.draw(st.booleans()) else raw
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(damaged)
    try:
        read_archive(path)
        found = opened(path, tmp_path / "cache")
    except BadArchive:
        return
    assert (found.folder / "noop.py").read_text() == archives.HANDLER


def test_stems() -> None:
    assert [archive_stem(Path(name)) for name in ("a.mar", "b.TAR.GZ", "c.d.tgz", "folder")] == ["a", "b", "c.d", "folder"]


def test_what_a_handler_deleted_of_its_folder_is_there_again_once_nobody_uses_it(tmp_path: Path) -> None:
    found = opened(archives.tgz(tmp_path / "noop.tar.gz"), tmp_path / "cache")
    (found.folder / "noop.py").write_text("")
    assert found.lock is not None
    found.lock.close()
    assert (opened(tmp_path / "noop.tar.gz", tmp_path / "cache").folder / "noop.py").read_text() == archives.HANDLER


@pytest.mark.parametrize("named", [{"configFile": "x" * 5_000}, {"handler": "x" * 5_000}], ids=["config", "handler"])
def test_a_manifest_that_names_what_no_file_can_be_called_is_refused(tmp_path: Path, named: dict[str, str]) -> None:
    with pytest.raises(BadArchive, match=r"long\.mar"):
        opened(archives.mar(tmp_path / "long.mar", archives.files(**named)), tmp_path / "cache")  # type: ignore[arg-type]


def test_an_archive_that_changes_while_it_is_unpacked_leaves_nothing_under_the_name_of_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = archives.mar(tmp_path / "m.mar"), archives.mar(tmp_path / "other.mar", archives.files(extra={"b.txt": "b"}))
    first = path.read_bytes()

    def changed(self: CacheRoom, *given: object) -> object:
        path.write_bytes(other.read_bytes())
        return begin(self, *given)  # type: ignore[arg-type]

    begin = CacheRoom.begin
    with monkeypatch.context() as patched:
        patched.setattr(CacheRoom, "begin", changed)
        with pytest.raises(BadArchive, match="was changed while it was unpacked"):
            opened(path, tmp_path / "cache")
    path.write_bytes(first)
    assert not (opened(path, tmp_path / "cache").folder / "b.txt").exists()


def test_a_member_that_says_it_is_a_folder_is_one_whatever_its_name(tmp_path: Path) -> None:
    path = archives.mar(tmp_path / "m.mar")
    with zipfile.ZipFile(path, "a") as archive:
        member = zipfile.ZipInfo("data")
        member.external_attr = (stat.S_IFDIR | 0o755) << 16
        archive.writestr(member, "text")
    assert (opened(path, tmp_path / "cache").folder / "data").is_dir()
