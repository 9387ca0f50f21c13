"""Creates, finds and cancels runs for /v1/runs, the doors of extensions, and the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from penstock.broker.blobs.uploads import FileRecord, FileStore, NewFile
from penstock.broker.contract import CancelStatus
from penstock.broker.run_contract import RunPage
from penstock.broker.store.runs import AsyncRunStore
from penstock.errors import Conflict, Gone, KeyReused, NotFound, QuotaSpent
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.lists import Lists
from penstock.gateway.runs.request import RESERVED, fingerprint, run_id_of
from penstock.job import new_serial
from penstock.run import Run, RunSpec, RunState, retry_spec
from penstock.settings.tables import RunsSettings

FINGERPRINT = RESERVED + "fingerprint"
_OPEN = tuple(state for state in RunState if not state.final)
# One call returns at most so many records, so that it holds the store for a few milliseconds at most.
_CALL = 100
# A filter passes runs over. This bounds the calls of one request, of which each looks at 500 runs; a cursor goes on from there.
MOST_CALLS = 10
_MOST_CANCELLED = 500


@dataclass(frozen=True, slots=True)
class RunOutputFiles:
    """The files of a run that can be read; None for a file that is missing, empty or not yet written."""

    output: FileRecord | None = None
    errors: FileRecord | None = None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a list shows: in any of `states`, with `tag`, and of `kind`; empty: of all."""

    states: tuple[RunState, ...] = ()
    tag: str = ""
    kind: str = ""

    def has(self, run: Run) -> bool:
        return (not self.tag or self.tag in run.spec.tags) and self.kind in ("", run.spec.kind)

    @property
    def text(self) -> str:
        """What the encoded spec of such a run has; a spec that has it may still be of another run."""
        return f'"{self.tag}"' if self.tag else f'"kind":"{self.kind}"' if self.kind else ""


def output_files(files: FileStore, run: Run) -> RunOutputFiles:
    """The files of a run that can be read; none of an open run. Looks at the disk: call it in a thread."""
    if not run.state.final:
        return RunOutputFiles()
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
        lists: Lists,
        require_room: Callable[[str], Awaitable[None]],
    ) -> None:
        self._runs = runs
        self._lists = lists
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
            await self._require_room(owner)
            # `create` decides; a caller who is refused here leaves no files to be made and deleted.
            await self._runs.room(owner, self._max_open)
            marked = msgspec.structs.replace(spec, metadata=spec.metadata | {FINGERPRINT: fingerprint})
            kept_s = self._file_ttl_s if ttl_s is None else ttl_s
            run = await self._store(run_id, marked, owner, kept_s, words)
        if run.owner != owner or run.spec.metadata.get(FINGERPRINT) != fingerprint:
            raise KeyReused("this Idempotency-Key was used for another request", hint="Use a new key for a new request.")
        return run

    async def _store(self, run_id: str, spec: RunSpec, owner: str, ttl_s: float, words: Mapping[str, str] | None) -> Run:
        """The stored run with files reserved for its output (D41), or the run of a concurrent request that was first."""
        reserved = () if spec.output else await asyncio.to_thread(self._reserve, spec, owner, run_id, ttl_s)
        if reserved:
            spec = msgspec.structs.replace(spec, output=reserved[0], errors=reserved[1])
        try:
            created = await self._runs.create(run_id, spec, owner=owner, most=self._max_open, words=words)
        except QuotaSpent:
            await asyncio.to_thread(self._delete, *reserved)
            raise
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

    async def page(self, caller: Caller, *, after: str, limit: int, wanted: RunFilter = RunFilter()) -> RunPage:
        """The caller's wanted runs, newest first. Raises `RateLimited` as `Lists.turn` does."""
        found = await self._read(caller, after=after, limit=limit + 1, wanted=wanted)
        more = len(found.runs) > limit
        return RunPage(found.runs[:limit], found.runs[limit - 1].id if more else found.next_after)

    async def _read(self, caller: Caller, *, after: str, limit: int, wanted: RunFilter) -> RunPage:
        owner = caller.only_owner
        runs: list[Run] = []
        async with self._lists.turn(caller):
            for _ in range(MOST_CALLS):
                most = min(_CALL, limit - len(runs))
                page = await self._runs.page(owner=owner, states=wanted.states, text=wanted.text, after=after, limit=most)
                runs += filter(wanted.has, page.runs)
                after = page.next_after
                if not after or len(runs) >= limit:
                    break
        return RunPage(runs, after)

    async def cancel(self, run: Run) -> Run:
        """Record a cancel request and return the run. Safe to repeat. Raises `Conflict` if the run ended otherwise."""
        outcome = await self._runs.ask_cancel(run.id)
        run = await self._runs.read(run.id) or run
        if outcome is CancelStatus.FINAL and run.state is not RunState.CANCELLED:
            raise Conflict(f"the run has ended; its state is {run.state.value}")
        return run

    async def cancel_tagged(self, tag: str, caller: Caller, *, after: str = "") -> RunPage:
        """Request the cancellation of the caller's runs of this tag, a few hundred after the run `after`; returns these runs.

        Runs that end in the meantime are left out.
        """
        found = await self._read(caller, after=after, limit=_MOST_CANCELLED, wanted=RunFilter(_OPEN, tag))
        told: list[Run] = []
        for run in found.runs:
            with suppress(Conflict):
                told.append(await self.cancel(run))
        return RunPage(told, found.next_after)

    async def output_files(self, run: Run) -> RunOutputFiles:
        """The files that an ended run has written; none for an open run."""
        return await asyncio.to_thread(output_files, self.files, run)

    async def output_files_of(self, runs: Sequence[Run]) -> list[RunOutputFiles]:
        """The same of the runs of a page."""
        return await self._lists.read(lambda: [output_files(self.files, run) for run in runs])

    def _reserve(self, spec: RunSpec, owner: str, run_id: str, ttl_s: float) -> tuple[str, str]:
        now, suffix = self.files.now(), spec.output_format or "jsonl"
        output = NewFile(owner, f"{run_id}.output.{suffix}", "batch_output", ttl_s)
        errors = NewFile(owner, f"{run_id}.errors.jsonl", "batch_output", ttl_s)
        return str(self.files.reserve(output, now=now)), str(self.files.reserve(errors, now=now))

    def _delete(self, *paths: str) -> None:
        for path in paths:
            self.files.delete(self.files.id_of(path))
