"""Payloads too large for a record, kept as objects of an S3, Google or Azure store, so that machines need share no folder.

The only module that imports obstore, and loaded only where `store.blob_url` names such a store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
import structlog
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from penstock.broker.blobs.copies import Copies
from penstock.broker.blobs.files import (
    BLOBS_NOT_DELETED,
    CLOCK,
    COLLECTED_LATER,
    PASSED,
    BlobFile,
    BlobsUnavailable,
    checked,
    is_blob_name,
)
from penstock.broker.blobs.readers import PIECE_BYTES, BlobReader
from penstock.errors import ConfigError, Gone

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = structlog.get_logger(__name__)

_MARK = "STORE"
# Enough parallel requests to hide the 20 to 100 ms that an object store takes for one.
_AT_ONCE = 16
# Callers try again by themselves and show that they wait. During a retry of the library a slot does nothing else while its
# lease runs: with the library's own pauses, which grow to 15 s, a bucket that was away cost the current batch its lease.
_RETRIES, _RETRY_FOR_S = 3, 2.0
_PAUSES_S = (0.1, 0.4)
# A store that takes a request and never answers holds the slot no longer than its lease lasts without a turn (10 s of the usual
# 15). It is set in the environment, which an operator can override: `client_options` would replace all that the environment
# says of connections (AWS_ALLOW_HTTP, proxies).
_SILENCE = "9s"
_ENVIRONMENTS = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
_CHUNK_BYTES = 1 << 20
_FAULT_CHARS = 300
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist")
_HINT = "check store.blob_url, that the bucket exists, and the credentials in the environment; what waits for it is tried again"
_Given = TypeVar("_Given")
_Got = TypeVar("_Got")


def open_objects(url: str, copies: Copies) -> ObjectBlobs:
    """The blobs below `url`; credentials and endpoint come from the environment. No request is sent yet."""
    environment = _ENVIRONMENTS.get(url.partition(":")[0])
    if environment:
        os.environ.setdefault(f"{environment}_READ_TIMEOUT", _SILENCE)
    try:
        first, most = (timedelta(seconds=pause_s) for pause_s in _PAUSES_S)
        pauses = {"init_backoff": first, "max_backoff": most, "base": 2}
        retries = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_FOR_S), "backoff": pauses}
        return ObjectBlobs(from_url(url, retry_config=retries), copies, location=url)  # type: ignore[call-overload]
    except (BaseError, ValueError) as fault:
        raise ConfigError(f"store.blob_url {url} cannot be used: {said(fault)}", hint=_HINT) from None


class ObjectBlobs:
    """Blobs as objects. `location` names the object store in messages. Safe to call from any thread."""

    def __init__(self, store: ObjectStore, copies: Copies, *, location: str) -> None:
        self._store = store
        self._copies = copies
        self._location = location

    def put(self, name: str, data: bytes) -> None:
        checked(name)
        try:
            # One request whatever the size: parts of an upload that a crash cuts short would stay and be paid for.
            obstore.put(self._store, name, data, use_multipart=False)
        except (BaseError, OSError) as fault:
            raise self._away(f"blob {name} ({len(data)} bytes) cannot be written", fault) from fault

    def put_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[None]:
        return _at_once(lambda blob: self.put(*blob), blobs)

    def append_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[str]:
        self.put_all(blobs)
        return [name for name, _ in blobs]

    def get(self, name: str) -> bytes:
        with self._reading(checked(name)):
            return bytes(obstore.get(self._store, name).bytes())

    def peek(self, name: str, size: int) -> tuple[bytes, int]:
        with self._reading(checked(name)):
            whole = obstore.head(self._store, name)["size"]
            # An object store refuses a range of an empty object.
            head = bytes(obstore.get_range(self._store, name, start=0, length=min(size, whole))) if whole else b""
            return head, whole

    def open(self, name: str) -> BlobReader:
        with self._reading(checked(name)):
            size = obstore.head(self._store, name)["size"]
        return _ObjectReader(size, lambda start, end: self._pieces(name, start, end))

    def _pieces(self, name: str, start: int, end: int) -> Iterator[bytes]:
        if start == end:
            return
        with self._reading(name):
            answer = obstore.get(self._store, name, options={"range": (start, end)})
            yield from map(bytes, answer.stream(min_chunk_size=PIECE_BYTES))

    def delete_all(self, names: Sequence[str]) -> None:
        if not names:
            return
        try:
            obstore.delete(self._store, [checked(name) for name in names])
        except FileNotFoundError:
            # With a folder behind this interface, the library stops at the first missing file.
            _each_deleted(self._store, names)
        except (BaseError, OSError) as fault:
            log.warning(BLOBS_NOT_DELETED, blobs=len(names), error=said(fault), next=COLLECTED_LATER)

    def readable(self, names: Sequence[str]) -> list[BlobFile | None]:
        fetched: list[BlobFile] = []
        try:
            return _at_once(lambda name: self._fetched(name, fetched), names)
        except BlobsUnavailable:
            for file in fetched:
                file.path.unlink(missing_ok=True)
            raise

    def _fetched(self, name: str, fetched: list[BlobFile]) -> BlobFile | None:
        try:
            path = self._copies.fresh(checked(name))
            fetched.append(BlobFile(path, own=True))
            self._copy(name, path)
        except Gone:
            path.unlink(missing_ok=True)
            return None
        return BlobFile(path, own=True)

    def _copy(self, name: str, path: Path) -> None:
        with self._reading(name), path.open("xb") as file:
            for chunk in obstore.get(self._store, name).stream(min_chunk_size=_CHUNK_BYTES):
                file.write(chunk)

    def belong_to(self, store: str) -> bool:
        try:
            obstore.put(self._store, _MARK, store.encode(), mode="create", use_multipart=False)
        except (AlreadyExistsError, FileExistsError):
            with self._reading(_MARK):
                return bytes(obstore.get(self._store, _MARK).bytes()) == store.encode()
        except (BaseError, OSError) as fault:
            raise self._away("the mark of whose blobs these are cannot be written", fault) from fault
        return True

    def begin_pass(self, every_s: float) -> bool:
        try:
            if self._now() - self._dated(PASSED) < every_s:
                return False
            obstore.put(self._store, PASSED, b"", use_multipart=False)
        except (BaseError, OSError) as fault:
            raise self._away("the mark of the last pass cannot be written", fault) from fault
        return True

    def names(self) -> Iterator[tuple[str, float]]:
        try:
            now = self._now()
            for part in obstore.list(self._store, chunk_size=1000):
                for entry in part:
                    if is_blob_name(entry["path"]):
                        yield entry["path"], now - entry["last_modified"].timestamp()
        except (BaseError, OSError) as fault:
            raise self._away("the blobs cannot be listed", fault) from fault

    def _now(self) -> float:
        """Unix time by the clock that dates the objects."""
        obstore.put(self._store, CLOCK, b"", use_multipart=False)
        return self._dated(CLOCK)

    def _dated(self, name: str) -> float:
        """Unix time at which this object was written; 0 if there is none."""
        try:
            return float(obstore.head(self._store, name)["last_modified"].timestamp())
        except FileNotFoundError:
            return 0.0

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise Gone(f"blob {name} is not in {self._location}: it was collected, or this is not where it was put") from None
        except (BaseError, OSError) as fault:
            raise self._away(f"blob {name} cannot be read", fault) from fault

    def _away(self, what: str, fault: Exception) -> BlobsUnavailable:
        return BlobsUnavailable(f"{what} at {self._location}: {said(fault)}", hint=_HINT)


@dataclass(frozen=True, slots=True)
class _ObjectReader:
    """Each call of `pieces` is one request, whose answer is read as it is taken."""

    size: int
    pieces: Callable[[int, int], Iterator[bytes]]


def _each_deleted(store: ObjectStore, names: Sequence[str]) -> None:
    for name in names:
        try:
            obstore.delete(store, name)
        except FileNotFoundError:
            continue
        except (BaseError, OSError) as fault:
            log.warning(BLOBS_NOT_DELETED, blobs=1, error=said(fault), next=COLLECTED_LATER)


def _at_once(do: Callable[[_Given], _Got], given: Sequence[_Given]) -> list[_Got]:
    """Call `do` for each, several at a time; raises the first fault once no call is under way."""
    if len(given) < 2:
        return [do(each) for each in given]
    with ThreadPoolExecutor(min(_AT_ONCE, len(given))) as threads:
        return list(threads.map(do, given))


def said(fault: Exception) -> str:
    """The first line of the message, cut at a question mark, because signed addresses hold credentials behind it."""
    if _NO_BUCKET.search(str(fault)):
        return "there is no such bucket"
    first = str(fault).partition("\n")[0]
    return re.sub(r"\?\S*", "", first)[:_FAULT_CHARS] or type(fault).__name__
