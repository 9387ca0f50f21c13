"""The members of a packed archive, zip or tar.gz, each checked before its first byte comes out (`members.py`).

The sizes that the file states are not trusted: no read is larger than a bound, and the bytes that come out are counted.
"""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import IO

from penstock.errors import BadArchive
from penstock.extensions.torchserve.archives.kinds import FORMS
from penstock.extensions.torchserve.archives.members import Member, MemberCheck, MemberKind

CHUNK_BYTES = 1 << 18
# A table of contents of this size names far more members than an archive may hold.
_TABLE_BYTES = 8 << 20
# Long names and other notes of a tar file. Python's reader takes such a note into memory as a whole.
_NOTE_BYTES = 1 << 20
_BLOCK = 512
_ZIP, _GZIP, _POINTER = b"PK", b"\x1f\x8b", b"version https://git-lfs"
_DAMAGED = "it is cut short or damaged; copy or download it again, and compare its size and its sum with the original's"
_KINDS = {stat.S_IFREG: MemberKind.FILE, stat.S_IFDIR: MemberKind.FOLDER, stat.S_IFLNK: MemberKind.LINK}
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What Python's readers raise for files that are not what they seem.
_READ_FAULTS = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    LookupError,
    OverflowError,
    UnicodeError,
    ValueError,
)

# A member's path below the folder of the archive, what it is, and its bytes.
PackedMember = tuple[str, MemberKind, Iterator[bytes]]


def packed_members(file: IO[bytes], check: MemberCheck) -> Iterator[PackedMember]:
    """The members in order; take the bytes of each before the next one. Raises `BadArchive`: the whole archive is refused."""
    head = file.read(len(_POINTER))
    file.seek(0)
    if head.startswith(_ZIP):
        return _zip_members(file, check)
    if head.startswith(_GZIP):
        return _tar_members(file, check)
    if head == _POINTER:
        raise BadArchive(f"{check.archive} is a pointer of git-lfs, not the archive itself", hint="run `git lfs pull`")
    what = "is empty" if not head else f"is neither a zip nor a gzip file (it begins with {head[:8]!r})"
    raise BadArchive(f"{check.archive} {what}", hint=f"{FORMS}; was it downloaded whole?")


def _zip_members(file: IO[bytes], check: MemberCheck) -> Iterator[PackedMember]:
    with _readable(check), closing(zipfile.ZipFile(_Bounded(file))) as archive:
        # The table of contents comes first, so that nothing is unpacked of an archive with one bad member.
        members = [(_zip_member(info), info) for info in archive.infolist()]
        entries = [(check.add(member), member.kind, info) for member, info in members]
        for path, kind, info in entries:
            _check_method(info, check)
            yield path, kind, _zip_bytes(archive, info, check)


def _zip_member(info: zipfile.ZipInfo) -> Member:
    # Python cuts a name at its first zero byte; other readers may not.
    mode = stat.S_IFMT(info.external_attr >> 16)
    default = MemberKind.FOLDER if info.is_dir() else MemberKind.FILE
    return Member(info.orig_filename, _KINDS.get(mode, MemberKind.DEVICE) if mode else default, info.file_size)


def _check_method(info: zipfile.ZipInfo, check: MemberCheck) -> None:
    if info.flag_bits & 1:
        raise BadArchive(f"{check.archive} was not unpacked: {info.filename!r} is encrypted", hint="pack it without a password")
    if info.compress_type not in _METHODS:
        raise BadArchive(
            f"{check.archive} was not unpacked: {info.filename!r} is packed by method {info.compress_type}",
            hint="pack it again with torch-model-archiver, which stores or deflates",
        )


def _zip_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo, check: MemberCheck) -> Iterator[bytes]:
    with _readable(check), archive.open(info) as member:
        # The reader ends at the size that the table of contents gives, and compares the sum there.
        while chunk := member.read(CHUNK_BYTES):
            yield chunk


def _tar_members(file: IO[bytes], check: MemberCheck) -> Iterator[PackedMember]:
    with _readable(check), gzip.GzipFile(fileobj=file) as unzipped:
        stream = _Forward(unzipped, check)
        with closing(tarfile.TarFile(fileobj=stream, mode="r", errorlevel=2)) as archive:  # type: ignore[arg-type]
            for info in archive:
                path = check.add(_tar_member(info))
                yield path, MemberKind.FOLDER if info.isdir() else MemberKind.FILE, _tar_bytes(stream, info, check)
        if stream.tail != bytes(_BLOCK):
            # Python's reader takes a header that it cannot read for the end.
            raise EOFError("there is no mark at its end")
        stream.drain()


def _tar_member(info: tarfile.TarInfo) -> Member:
    if info.isdir():
        return Member(info.name, MemberKind.FOLDER)
    if info.issym() or info.islnk():
        return Member(info.name, MemberKind.LINK)
    # A file with holes says of itself how large it is, and takes no bytes of the archive for it.
    plain = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse()
    return Member(info.name, MemberKind.FILE if plain else MemberKind.DEVICE, info.size)


def _tar_bytes(stream: _Forward, info: tarfile.TarInfo, check: MemberCheck) -> Iterator[bytes]:
    with _readable(check):
        stream.seek(info.offset_data)
        left = info.size
        while left:
            chunk = stream.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise EOFError(f"{info.name} is cut short")
            left -= len(chunk)
            yield chunk


@contextmanager
def _readable(check: MemberCheck) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # Python raises it for a password that is missing, and for headers that nest too deep.
        raise BadArchive(f"{check.archive} was not unpacked: {error}", hint=_DAMAGED) from error
    except _READ_FAULTS as error:
        raise BadArchive(f"{check.archive} cannot be read: {str(error) or type(error).__name__}", hint=_DAMAGED) from error


class _Bounded(io.RawIOBase):
    """A file that bounds the memory of each read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, wanted: int = -1, /) -> bytes:
        if wanted > _TABLE_BYTES:
            raise zipfile.BadZipFile(f"its table of contents has {wanted:,} bytes")
        return self._file.read(wanted)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_SET and offset < 0:
            raise zipfile.BadZipFile("its table of contents points before its beginning")
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True


class _Forward:
    """What a gzip file unpacks to, read once from its beginning to its end. `tail` is the last block that was read.

    Python's reader of tar files steps back by one byte before each header. A gzip file would then be read from its beginning.
    """

    def __init__(self, file: gzip.GzipFile, check: MemberCheck) -> None:
        self._file = file
        self._check = check
        self._at = 0
        self._end = 0
        self.tail = b""

    def tell(self) -> int:
        return self._at

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or to < self._end - len(self.tail):
            raise tarfile.ReadError("its headers point backwards")
        while self._end < to and self._take(min(to - self._end, CHUNK_BYTES)):
            pass
        self._at = min(to, self._end)
        return self._at

    def read(self, wanted: int = -1) -> bytes:
        if not 0 <= wanted <= _NOTE_BYTES:
            raise tarfile.ReadError(f"one of its headers has {wanted:,} bytes")
        again = self.tail[len(self.tail) - (self._end - self._at) :][:wanted] if self._at < self._end else b""
        data = again + self._take(wanted - len(again))
        self._at += len(data)
        return data

    def drain(self) -> None:
        """Read what stands behind the end, so that the sum of the whole is compared."""
        while self._take(CHUNK_BYTES):
            pass

    def _take(self, wanted: int) -> bytes:
        data = self._file.read(wanted) if wanted else b""
        self._end += len(data)
        self._check.check_unpacked(self._end)
        if data:
            self.tail = (self.tail + data)[-_BLOCK:]
        return data
