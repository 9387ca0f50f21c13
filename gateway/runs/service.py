"""Runs as the gateway makes, finds and ends them, for whichever face they are asked for by."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.broker.blobs.uploads import FileRecord, FileStore, NewFile
from penstock.broker.contract import CancelStatus
from penstock.broker.store.runs import AsyncRunStore
from penstock.errors import Conflict, KeyReused, NotFound
from penstock.gateway.auth.roles import Caller
from penstock.gateway.runs.request import OURS, run_id_of
from penstock.job_id import new_serial
from penstock.run import Run, RunSpec

FINGERPRINT = OURS + "fingerprint"
WINDOW = OURS + "window"
MAX_LINES = OURS + "max_lines"
_READ_AT_ONCE = 200
# Filters read past what they drop; this bounds one request.
_MOST_READ = 5_000


@dataclass(frozen=True, slots=True)
class RunOutputFiles:
    """The files of a run that are there to be read; None for one that is not, or not yet."""

    output: FileRecord | None = None
    errors: FileRecord | None = None


class RunService:
    def __init__(self, runs: AsyncRunStore, files: FileStore, *, file_ttl_s: float) -> None:
        self._runs = runs
        self.files = files
        self._file_ttl_s = file_ttl_s

    async def create(self, spec: RunSpec, caller: Caller, *, key: str, mark: str, ttl_s: float | None = None) -> Run:
        """A new run that writes to files of its owner; or the one made before under the same idempotency key.

        `mark` is the request's fingerprint; raises `KeyReused` when the key was used for another request.
        """
        run_id = run_id_of(caller.owner, key) if key else new_serial()
        before = await self._runs.read(run_id) if key else None
        if before is None:
            keep_s = self._file_ttl_s if ttl_s is None else ttl_s
            output, errors = await asyncio.to_thread(self._reserve, spec, caller.owner, run_id, keep_s)
            marked = spec.metadata | {FINGERPRINT: mark}
            made = msgspec.structs.replace(spec, output=output, errors=errors, metadata=marked)
            created = await self._runs.create(run_id, made, owner=caller.owner)
            before = created.run
            if not created.new:
                await asyncio.to_thread(self._forget, output, errors)
        if before.owner != caller.owner or before.spec.metadata.get(FINGERPRINT) != mark:
            raise KeyReused("this Idempotency-Key was used for another request", hint="Use a new key for a new request.")
        return before

    async def visible(self, run_id: str, caller: Caller, *, kind: str = "") -> Run:
        """The run, if it is one of the caller's; else raises as for one that never was."""
        found = await self._runs.read(run_id) if run_id.isascii() and run_id.isalnum() and len(run_id) <= 64 else None
        if found is None or not caller.sees(found.owner) or (kind and found.spec.kind != kind):
            raise NotFound(f"there is no batch {'batch_' + run_id[:80]!r}" if kind else f"there is no run {run_id[:80]!r}")
        return found

    async def page(self, caller: Caller, *, after: str, limit: int, wanted: Callable[[Run], bool]) -> tuple[list[Run], bool]:
        """Newest first, and whether there are more."""
        owner = None if caller.sees("\0") else caller.owner
        found: list[Run] = []
        read = 0
        while len(found) <= limit and read < _MOST_READ:
            rows = await self._runs.runs(owner=owner, after=after, limit=_READ_AT_ONCE)
            found += [run for run in rows if wanted(run)]
            read += len(rows)
            if len(rows) < _READ_AT_ONCE:
                break
            after = rows[-1].id
        return found[:limit], len(found) > limit

    async def cancel(self, run: Run) -> Run:
        """Asked for; raises `Conflict` for a run that has ended."""
        if await self._runs.ask_cancel(run.id) is CancelStatus.FINAL:
            raise Conflict(f"it has ended already: it is {run.state.value}")
        return await self._runs.read(run.id) or run

    async def outcome(self, run: Run) -> RunOutputFiles:
        """What it has written; nothing before it ends."""
        return await asyncio.to_thread(self._outcome, run) if run.state.final else RunOutputFiles()

    def _outcome(self, run: Run) -> RunOutputFiles:
        return RunOutputFiles(self._found(run.spec.output), self._found(run.spec.errors))

    def _found(self, path: str) -> FileRecord | None:
        try:
            record = self.files.find(self.files.id_of(path), now=time.time())
        except NotFound:
            return None
        return record if record.size_bytes else None

    def _reserve(self, spec: RunSpec, owner: str, run_id: str, ttl_s: float) -> tuple[str, str]:
        now, suffix = time.time(), spec.output_format or "jsonl"
        output = NewFile(owner, f"{run_id}.output.{suffix}", "batch_output", ttl_s)
        errors = NewFile(owner, f"{run_id}.errors.jsonl", "batch_output", ttl_s)
        return str(self.files.reserve(output, now=now)), str(self.files.reserve(errors, now=now))

    def _forget(self, *paths: str) -> None:
        for path in paths:
            self.files.delete(self.files.id_of(path))
