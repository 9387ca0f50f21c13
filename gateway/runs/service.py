"""Creates, finds and cancels runs for /v1/runs, the doors of extensions, and the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from penstock.broker.blobs.uploads import FileRecord, FileStore, NewFile
from penstock.broker.contract import CancelStatus
from penstock.broker.store.runs import AsyncRunStore
from penstock.errors import Conflict, Gone, KeyReused, NotFound, QuotaSpent
from penstock.gateway.auth.keys import Caller
from penstock.gateway.runs.request import RESERVED, fingerprint, run_id_of
from penstock.job import new_serial
from penstock.run import Run, RunSpec, RunState, retry_spec
from penstock.settings.tables import RunsSettings

FINGERPRINT = RESERVED + "fingerprint"
_OPEN = tuple(state for state in RunState if not state.final)
_ROWS_PER_READ = 200
# A filter drops rows after they are read. This bounds the rows that one request reads.
_MOST_ROWS_READ = 5_000
_MOST_CANCELLED = 500


@dataclass(frozen=True, slots=True)
class RunOutputFiles:
    """The files of a run that can be read; None for a file that is missing, empty or not yet written."""

    output: FileRecord | None = None
    errors: FileRecord | None = None


@dataclass(frozen=True, slots=True)
class TaggedRuns:
    """The runs with a cancel request, as they are now. `next_after`: the last run that was read, if there are more."""

    runs: list[Run]
    next_after: str


def output_files(files: FileStore, run: Run) -> RunOutputFiles:
    """The files of an ended run that can be read. Looks at the disk: call it in a thread."""
    return RunOutputFiles(_found(files, run.spec.output), _found(files, run.spec.errors))


def _found(files: FileStore, path: str) -> FileRecord | None:
    try:
        record = files.find(files.id_of(path), now=files.now())
    except NotFound:
        return None
    return record if record.size_bytes else None


class RunService:
    """The runs of one store and their files. The store keeps the record of a run, never its rows (D37)."""

    def __init__(
        self,
        runs: AsyncRunStore,
        files: FileStore,
        table: RunsSettings,
        *,
        require_room: Callable[[str], Awaitable[None]],
    ) -> None:
        self._runs = runs
        self.files = files
        self._file_ttl_s = table.file_ttl_s
        self._max_open = table.max_owner_runs
        self._require_room = require_room

    async def now(self) -> float:
        """The store's clock, which dates runs."""
        return await self._runs.now()

    async def create(
        self,
        spec: RunSpec,
        owner: str,
        *,
        key: str,
        fingerprint: str,
        ttl_s: float | None = None,
        words: Mapping[str, str] | None = None,
    ) -> Run:
        """A new run, or the run created before under the same idempotency key.

        A spec without an output gets files of the owner. `words`: the run's words for extensions, by their names.

        Raises `KeyReused` if that run's request had another fingerprint, `QuotaSpent` or `StorageFull` if the owner may not
        have another run or file.
        """
        run_id = run_id_of(owner, key) if key else new_serial()
        run = await self._runs.read(run_id) if key else None
        if run is None:
            await self._require_quota(owner)
            marked = msgspec.structs.replace(spec, metadata=spec.metadata | {FINGERPRINT: fingerprint})
            kept_s = self._file_ttl_s if ttl_s is None else ttl_s
            run = await self._store(run_id, marked, owner, kept_s, words)
        if run.owner != owner or run.spec.metadata.get(FINGERPRINT) != fingerprint:
            raise KeyReused("this Idempotency-Key was used for another request", hint="Use a new key for a new request.")
        return run

    async def _require_quota(self, owner: str) -> None:
        await self._require_room(owner)
        under_way = await self._runs.runs(owner=owner, states=_OPEN, limit=self._max_open)
        if len(under_way) >= self._max_open:
            raise QuotaSpent(
                f"this owner has {len(under_way)} runs that have not ended, and may have {self._max_open}",
                retry_after_s=60.0,
                hint="Wait until some have ended, or cancel some; the operator may raise runs.max_owner_runs.",
            )

    async def _store(self, run_id: str, spec: RunSpec, owner: str, ttl_s: float, words: Mapping[str, str] | None) -> Run:
        """The stored run with files reserved for its output (D41), or the run of a concurrent request that was first."""
        reserved = () if spec.output else await asyncio.to_thread(self._reserve, spec, owner, run_id, ttl_s)
        if reserved:
            spec = msgspec.structs.replace(spec, output=reserved[0], errors=reserved[1])
        created = await self._runs.create(run_id, spec, owner=owner, words=words)
        if not created.new:
            await asyncio.to_thread(self._delete, *reserved)
        return created.run

    async def retry(self, run: Run, *, key: str, words: Mapping[str, str]) -> Run:
        """A run over the failed rows of a completed one, which publishes its output again. Raises `Conflict`, `Gone`."""
        spec = retry_spec(run)
        if (await self.output_files(run)).output is None:
            raise Gone(f"the output of run {run.id} is gone, and with it the outputs of the rows that did not fail")
        return await self.create(spec, run.owner, key=key, fingerprint=fingerprint(("retry", run.id)), words=words)

    async def find(self, run_id: str, caller: Caller) -> Run | None:
        """The run; None if it does not exist or the caller may not see it."""
        run = await self._runs.read(run_id) if run_id.isascii() and run_id.isalnum() and len(run_id) <= 64 else None
        return run if run is not None and caller.sees(run.owner) else None

    async def visible(self, run_id: str, caller: Caller) -> Run:
        """The run, if the caller may see it. Otherwise raises `NotFound`, as for a run that never existed (D15)."""
        if (run := await self.find(run_id, caller)) is None:
            raise NotFound(f"there is no run {run_id[:80]!r}")
        return run

    async def parts(self, run: Run) -> list[Run]:
        """The parts of a run that was split, in their order."""
        return await self._runs.parts(run.id) if run.parts else []

    async def page(self, caller: Caller, *, after: str, limit: int, is_wanted: Callable[[Run], bool]) -> tuple[list[Run], bool]:
        """The wanted runs, newest first, and whether there are more."""
        runs, _ = await self._read(caller, after=after, limit=limit + 1, is_wanted=is_wanted)
        return runs[:limit], len(runs) > limit

    async def _read(self, caller: Caller, *, after: str, limit: int, is_wanted: Callable[[Run], bool]) -> tuple[list[Run], str]:
        """The wanted runs, newest first, and the last one that was read; "" at the end."""
        owner = caller.only_owner
        runs: list[Run] = []
        for _ in range(_MOST_ROWS_READ // _ROWS_PER_READ):
            rows = await self._runs.runs(owner=owner, after=after, limit=_ROWS_PER_READ)
            for run in rows:
                after = run.id
                runs += [run] if is_wanted(run) else []
                if len(runs) == limit:
                    return runs, after
            if len(rows) < _ROWS_PER_READ:
                return runs, ""
        return runs, after

    async def cancel(self, run: Run) -> Run:
        """Record a cancel request and return the run. Safe to repeat. Raises `Conflict` if the run ended otherwise."""
        outcome = await self._runs.ask_cancel(run.id)
        run = await self._runs.read(run.id) or run
        if outcome is CancelStatus.FINAL and run.state is not RunState.CANCELLED:
            raise Conflict(f"the run has ended; its state is {run.state.value}")
        return run

    async def cancel_tagged(self, tag: str, caller: Caller, *, after: str = "") -> TaggedRuns:
        """Request the cancellation of the caller's runs of this tag, a few hundred after the run `after`.

        Runs that end in the meantime are left out.
        """
        runs, next_after = await self._read(
            caller, after=after, limit=_MOST_CANCELLED, is_wanted=lambda run: not run.state.final and tag in run.spec.tags
        )
        told: list[Run] = []
        for run in runs:
            with suppress(Conflict):
                told.append(await self.cancel(run))
        return TaggedRuns(told, next_after)

    async def output_files(self, run: Run) -> RunOutputFiles:
        """The files that an ended run has written; none for an open run."""
        return await asyncio.to_thread(output_files, self.files, run) if run.state.final else RunOutputFiles()

    def _reserve(self, spec: RunSpec, owner: str, run_id: str, ttl_s: float) -> tuple[str, str]:
        now, suffix = self.files.now(), spec.output_format or "jsonl"
        output = NewFile(owner, f"{run_id}.output.{suffix}", "batch_output", ttl_s)
        errors = NewFile(owner, f"{run_id}.errors.jsonl", "batch_output", ttl_s)
        return str(self.files.reserve(output, now=now)), str(self.files.reserve(errors, now=now))

    def _delete(self, *paths: str) -> None:
        for path in paths:
            self.files.delete(self.files.id_of(path))
