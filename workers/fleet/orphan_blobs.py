"""Deletes blobs that no record names: those of a process that crashed between writing a blob and its record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import islice
from typing import Protocol

import structlog

from penstock.broker.blobs.files import BlobStore, BlobsUnavailable

log = structlog.get_logger(__name__)
ORPHANS_DELETED = "orphans_deleted"
ORPHANS_MISSED = "orphans_missed"
FOREIGN_BLOBS = "blobs_of_another_store"

FIRST_AFTER_S = 60.0
EVERY_S = 600.0
# A record is written in the same request as its blob. No request lasts this long.
OLD_S = 3_600.0
# Blobs per call: it takes some milliseconds, so that the sweeps in the same thread are not late.
PART = 1_000
_CUT_SHORT = ".new"


class RecordLookup(Protocol):
    def identity(self) -> str: ...

    def known(self, serials: Sequence[str]) -> set[str]: ...


def serial_of(name: str) -> str:
    return name.partition(".")[0]


def old_ones(blobs: Iterable[tuple[str, float]]) -> list[str]:
    """The names among pairs of name and age in seconds that are old enough for their record to have been written."""
    return [name for name, age_s in blobs if age_s > OLD_S]


def orphans(names: Iterable[str], known: Set[str]) -> list[str]:
    """The names whose job is not among the `known` serials, and all writes that were cut short, which are never read."""
    return [name for name in names if name.endswith(_CUT_SHORT) or serial_of(name) not in known]


class OrphanCollector:
    """Goes over all blobs a minute after the start and then every ten minutes, a part of them per call, unless another worker
    did so meanwhile. For one thread.

    It deletes only from a place that belongs to this very store. To another Redis that uses the same folder, or to one that
    lost its data, all blobs look like orphans.
    """

    def __init__(self, records: RecordLookup, blobs: BlobStore) -> None:
        self._records = records
        self._blobs = blobs
        self._due_at: float | None = None
        self._left: Iterator[tuple[str, float]] | None = None

    def run_once(self, now: float) -> None:
        """Raises `StoreUnavailable`; the blobs of this call then wait for the next pass. `now` is monotonic."""
        try:
            if self._due(now):
                self._part()
        except (OSError, BlobsUnavailable) as fault:
            # D44: a failure here loses nothing. Sweeps must go on although the folder or bucket cannot be read or written.
            self._give_up_pass(fault)

    def _give_up_pass(self, fault: Exception) -> None:
        log.warning(ORPHANS_MISSED, error=str(fault))
        self._left = None

    def _are_ours(self) -> bool:
        ours = self._blobs.belong_to(self._records.identity())
        if not ours:
            log.warning(
                FOREIGN_BLOBS, next="give each Redis a store.blob_dir or blob_url of its own; orphans here are not collected"
            )
        return ours

    def _due(self, now: float) -> bool:
        if self._due_at is None:
            self._due_at = now + FIRST_AFTER_S
            # Marks a new folder as this store's, before another store can.
            self._are_ours()
        if self._left is None and now >= self._due_at:
            self._due_at = now + EVERY_S
            # One worker does this for all: else each of 500 workers would ask the store for each blob in these ten minutes.
            mine = self._are_ours() and self._blobs.begin_pass(EVERY_S * 0.9)
            self._left = self._blobs.names() if mine else None
        return self._left is not None

    def _part(self) -> None:
        assert self._left is not None
        part = list(islice(self._left, PART))
        if len(part) < PART:
            self._left = None
        names = old_ones(part)
        if not names:
            return
        gone = orphans(names, self._records.known(sorted(set(map(serial_of, names)))))
        self._blobs.delete_all(gone)
        if gone:
            log.warning(ORPHANS_DELETED, blobs=len(gone))
