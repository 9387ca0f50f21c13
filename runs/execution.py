"""One run from its start in this process until it ends or is interrupted: open files, drive rows, publish the output."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.broker.blobs.opening import open_blobs
from penstock.broker.contract import UpdateStatus
from penstock.broker.run_contract import RunChange
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import Conflict, InternalError, NotFound, PenstockError, StoreUnavailable, is_disk_full
from penstock.job import BlobLocation
from penstock.run import ACCEPT_CHANGES, BY_COMMAND, FailureLimit, RunCounts, RunState, check_said
from penstock.runs.driver import Checkpoint, Driver, RunLimits, StopReason, TooManyFailed, too_many
from penstock.runs.journal import Journal
from penstock.runs.kinds import ClaimedOutput, RunKind, run_kind
from penstock.runs.lease import OwnedRun, RunLease
from penstock.runs.manifest import Manifest
from penstock.runs.model_lookup import ServedModel, Slots, find_served, slots_of
from penstock.runs.parts.joining import join_parts, joined_counts, manifest_parts, read_reports
from penstock.runs.parts.part_files import PartHeld, PartNotHere, run_folder
from penstock.runs.parts.stretches import total_rows
from penstock.runs.progress import RunProgress
from penstock.runs.publishing import publish, published_counts, published_manifest, write_unreached
from penstock.runs.rows import RowError, RowSource
from penstock.runs.run_files import (
    RunFiles,
    claim_part,
    need_joinable,
    open_part,
    open_run_files,
    readable,
    remote_fault,
    split_source,
)
from penstock.runs.shards.push_listener import PushListener
from penstock.runs.shards.shard_queue import ShardQueue, ShardTerms

log = logging.getLogger("penstock.runs")

# The deadline of a shard whose run has none: the store requires a number, and a shard may wait without limit.
_NO_DEADLINE_S = 30 * 86_400.0
_RETRY_PAUSE_S = 0.2
# A run that makes no progress for so long, because no worker serves its model, no longer keeps others waiting.
MOST_ALONE_S = 600.0
_LOST = (UpdateStatus.LOST, UpdateStatus.FINAL)
_FINAL_STATES = {StopReason.CANCEL: RunState.CANCELLED, StopReason.EXPIRE: RunState.EXPIRED}


@dataclass(frozen=True, slots=True)
class RunServices:
    """What driving a run needs: the store, the blobs that its workers read, a local folder for outputs that go to URLs.

    `patience_s`: how long the model may be unknown while its worker starts.
    """

    redis_url: str
    blobs: BlobLocation
    state_dir: Path
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """What a resumed run may do beyond its spec: accept a changed input or version, or more failed rows."""

    accept_changes: bool = False
    max_failed: int | str | None = None


@dataclass(frozen=True, slots=True)
class DriveResult:
    """How a drive ended. `state` is RUNNING if the run was interrupted. `details`: what was published, or the faults.

    `hint`: the remedy of an error with which an unchanged resume would end again.
    """

    state: RunState
    counts: RunCounts | None = None
    rows_per_s: float | None = None
    error_code: str = ""
    error_message: str = ""
    details: dict[str, Any] | None = None
    hint: str = ""


class Execution:
    """Drives one run that this process owns. One thread calls `execute`, once; any other may call `interrupt`."""

    def __init__(
        self,
        owned: OwnedRun,
        services: RunServices,
        *,
        on_progress: Callable[[RunProgress], None],
        options: ResumeOptions | None = None,
    ) -> None:
        self._owned, self._services, self._on_progress = owned, services, on_progress
        self._options = options or ResumeOptions()
        self._interrupted, self._built_at = False, time.monotonic()
        self._lease: RunLease | None = None
        self._version = owned.run.version

    def interrupt(self) -> None:
        """Leave the run at its next commit, so that it can be resumed."""
        self._interrupted = True
        if self._lease is not None:
            self._lease.interrupt()

    def is_suspect(self) -> bool:
        """Whether an earlier driver of the run died without progress, and this one, begun lately, has made none yet."""
        progress, before = self._lease.last_progress if self._lease else None, self._owned.run.counts
        rows = progress.counts.done + progress.counts.failed if progress else 0
        is_early = time.monotonic() < self._built_at + MOST_ALONE_S
        return is_early and self._owned.run.drives > 1 and rows <= before.done + before.failed

    def execute(self) -> DriveResult:
        """Returns when the run has ended or was interrupted. The store then has the result, if it could be reached."""
        with closing(RedisStore(self._services.redis_url, name="penstock-run-beat")) as store:
            lease = self._lease = RunLease(
                self._owned, RunStore(store), count_slots=lambda: self._count_slots(store), on_progress=self._on_progress
            )
            lease.start()
            if self._interrupted:
                lease.interrupt()
            try:
                result = self._drive_or_fail(lease)
            finally:
                lease.close()
            self._record(lease, result)
            return result

    def _count_slots(self, store: RedisStore) -> Slots:
        return slots_of(store.workers(), self._owned.run.spec.model, self._version)

    def _drive_or_fail(self, lease: RunLease) -> DriveResult:
        try:
            return self._open_and_drive(lease)
        except PartNotHere as refusal:
            log.warning("part_given_back", extra={"run": self._owned.run.id, "error": refusal.message})
            return _with_error(refusal, DriveResult(RunState.RUNNING))
        except PenstockError as error:
            faults = getattr(error, "errors", None)
            details = {"errors": faults} if faults else None
            return _with_error(error, DriveResult(RunState.FAILED, details=details))
        except OSError as error:
            if is_disk_full(error):
                where = error.filename or self._owned.run.spec.output
                return DriveResult(RunState.FAILED, error_code="disk_full", error_message=f"the disk of {where} is full")
            return DriveResult(RunState.FAILED, error_code="io_error", error_message=str(error))
        except Exception as error:
            if refused := remote_fault(error):
                return DriveResult(RunState.FAILED, error_code="io_error", error_message=refused)
            # No input may break a drive twice: the run ends, and a user can resume it.
            log.exception("run_broke", extra={"run": self._owned.run.id})
            bug = InternalError(f"{type(error).__name__}: {error}")
            return _with_error(bug, DriveResult(RunState.FAILED))

    def _open_and_drive(self, lease: RunLease) -> DriveResult:
        run = self._owned.run
        if run.parts:
            return self._join(lease)
        lease.write(RunChange(state=RunState.VALIDATING, error_code="", error_message=""))
        if (manifest := published_manifest(self._kind, run)) is not None:
            return _as_published(manifest, lease)
        self._kind.check(run.spec)
        with ExitStack() as open_things:
            store = open_things.enter_context(closing(RedisStore(self._services.redis_url, name="penstock-run")))
            model = self._await_model(store, lease)
            if model is None:
                return DriveResult(_FINAL_STATES.get(lease.stop_reason(), RunState.RUNNING))
            check_said(run.spec.headers, model.request_headers, "headers")
            check_said(run.spec.query, model.query, "query")
            self._version = model.version
            lease.refresh_slots()
            if run.spec.parts > 1 and run.part is None:
                return self._split(open_things, model, lease)
            files = self._open_files(open_things, model, lease)
            if isinstance(files, DriveResult):
                return files
            lease.write(RunChange(state=RunState.RUNNING, version=model.version))
            return self._drive(lease, store, files, model)

    def _open_files(self, open_things: ExitStack, model: ServedModel, lease: RunLease) -> RunFiles | DriveResult:
        """The run's files, or the result if another process had them and ended the run."""
        run = self._owned.run
        source, first_line = self._open_source(open_things, model.input_schema)
        output = self._claim_output(open_things, first_line)
        if not self._await_turn(output.journal, lease):
            return DriveResult(_FINAL_STATES.get(lease.stop_reason(), RunState.RUNNING))
        if (counts := published_counts(self._kind, run, output)) is not None:
            # The process that had the files has published them.
            output.discard()
            return DriveResult(RunState.COMPLETED, counts)
        return open_run_files(run, source, output, version=model.version, accept_changes=self._accepts_changes)

    @cached_property
    def _kind(self) -> RunKind:
        """Looked up while the run is driven, so that an unknown kind fails like any other fault."""
        return run_kind(self._owned.run.spec.kind)

    @property
    def _unreached(self) -> Mapping[RunState, RowError]:
        """As the kind's. None for a run that `penstock run resume` continues: one that a command drives, and a part."""
        spec, part = self._owned.run.spec, self._owned.run.part
        return {} if part is not None or BY_COMMAND in spec.metadata else self._kind.unreached

    @property
    def _accepts_changes(self) -> bool:
        return self._options.accept_changes or ACCEPT_CHANGES in self._owned.run.spec.metadata

    def _open_source(self, open_things: ExitStack, schema: dict[str, Any] | None) -> tuple[RowSource, int | None]:
        run = self._owned.run
        if run.part is None:
            source, first_line = self._kind.open_source(run.spec, schema)
        else:
            source, first_line = open_part(run.spec, run.part, schema, accept_changes=self._accepts_changes)
        open_things.callback(source.close)
        return source, first_line

    def _claim_output(self, open_things: ExitStack, first_line: int | None) -> ClaimedOutput:
        run, state = self._owned.run, self._services.state_dir / "runs"
        if run.part is None:
            output = self._kind.claim_output(run, first_line, state)
        else:
            output = claim_part(run, run.part, first_line, state)
        open_things.callback(output.close)
        return output

    def _split(self, open_things: ExitStack, model: ServedModel, lease: RunLease) -> DriveResult:
        """Split the run into parts for any driver; the run is then left until all parts have ended."""
        run = self._owned.run
        need_joinable(self._kind, run.spec)
        source, first_line = self._kind.open_source(run.spec, model.input_schema)
        open_things.callback(source.close)
        output = self._claim_output(open_things, first_line)
        if not self._await_turn(output.journal, lease):
            return DriveResult(_FINAL_STATES.get(lease.stop_reason(), RunState.RUNNING))
        lease.on_progress(RunProgress(stage="splitting"))
        parts = split_source(source, run.spec.parts)
        lease.write(RunChange(state=RunState.RUNNING, version=model.version))
        if lease.split(parts, RunCounts(total=total_rows(parts))) in _LOST:
            raise self._lost()
        return DriveResult(RunState.RUNNING)

    def _join(self, lease: RunLease) -> DriveResult:
        """Join the rows of all parts and publish them. Safe to repeat after a crash."""
        run, state = self._owned.run, self._services.state_dir / "runs"
        self._version = run.version
        if (manifest := published_manifest(self._kind, run)) is not None:
            return DriveResult(RunState.COMPLETED, manifest.counts)
        with ExitStack() as open_things:
            folder = run_folder(run, state)
            output = self._claim_output(open_things, None)
            if not self._await_turn(output.journal, lease):
                return DriveResult(_FINAL_STATES.get(lease.stop_reason(), RunState.RUNNING))
            if (counts := published_counts(self._kind, run, output)) is not None:
                output.discard()
                return DriveResult(RunState.COMPLETED, counts)
            source, _ = readable(lambda: self._kind.open_source(run.spec, None))
            open_things.callback(source.close)
            files = RunFiles(source, output.sink, output.journal, Checkpoint(), folder, output.discard)
            return self._publish_parts(lease, files)

    def _publish_parts(self, lease: RunLease, files: RunFiles) -> DriveResult:
        run, parts = self._owned.run, lease.parts()
        if parts is None or any(part.state is not RunState.COMPLETED for part in parts):
            return DriveResult(RunState.RUNNING)
        reports = read_reports(files.folder, len(parts))
        counts = joined_counts(reports)
        limit = self._limits().max_failed
        if limit is not None and limit.is_passed(counts, ended=True):
            return _with_error(TooManyFailed(too_many(counts, limit)), DriveResult(RunState.FAILED, counts))
        lease.on_progress(RunProgress(counts, "publishing"))
        if lease.write(RunChange(state=RunState.PUBLISHING, counts=counts)) in _LOST:
            raise self._lost()
        is_joined = join_parts(files.sink, files.folder, reports, go_on=lambda: lease.is_held() and not lease.stop_reason())
        if not is_joined or not lease.is_held():
            return DriveResult(_FINAL_STATES.get(lease.stop_reason(), RunState.RUNNING), counts)
        listed = manifest_parts([part.part for part in parts if part.part], reports, files.source)
        details = publish(self._kind, run, files, counts=counts, version=run.version, now=lease.now(), parts=listed)
        took_s = max(0.001, lease.now() - (run.started_at or run.created_at))
        return DriveResult(RunState.COMPLETED, counts, (counts.done + counts.failed) / took_s, details=details)

    def _await_turn(self, journal: Journal, lease: RunLease) -> bool:
        """Wait until no other process writes the run's files. False if there is a reason to stop."""
        while not lease.stop_reason():
            if journal.acquire():
                return True
            if self._owned.run.part is not None:
                # In the meantime this process may drive other parts.
                raise PartHeld(f"the process that drove this part before has not ended; it still holds {journal.path}")
            note = f"the process that drove the run before has not ended; it still holds {journal.path}"
            lease.on_progress(RunProgress(stage="starting", note=note))
            time.sleep(_RETRY_PAUSE_S)
        return False

    def _await_model(self, store: RedisStore, lease: RunLease) -> ServedModel | None:
        """The version that the run uses; None if there is a reason to stop. Raises `NotFound` after `patience_s`."""
        run, give_up_at = self._owned.run, time.monotonic() + self._services.patience_s
        wanted = "" if self._accepts_changes else run.version or run.spec.version
        while not lease.stop_reason():
            try:
                return find_served(store, run.spec.model, version=wanted)
            except NotFound:
                if time.monotonic() > give_up_at:
                    raise
                lease.on_progress(RunProgress(stage="starting", note=f"{run.spec.model} is being loaded"))
            except StoreUnavailable as away:
                lease.on_progress(RunProgress(stage="starting", note=away.message))
            time.sleep(_RETRY_PAUSE_S)
        return None

    def _drive(self, lease: RunLease, store: RedisStore, files: RunFiles, model: ServedModel) -> DriveResult:
        driver = Driver(
            files.source, files.sink, limits=self._limits(), checkpoint=files.checkpoint, watch=lease, commit=files.commit
        )
        with closing(PushListener(self._services.redis_url)) as listener:
            blobs, terms = open_blobs(self._services.blobs), self._terms(lease, files, model)
            try:
                reason = driver.drive(ShardQueue(store, blobs, listener, terms=terms, inputs=driver.inputs))
            except PenstockError as error:
                return _with_error(error, DriveResult(RunState.FAILED, driver.counts, driver.mean_rate()))
        return self._finish(lease, files, driver, reason)

    def _limits(self) -> RunLimits:
        spec, most = self._owned.run.spec, self._options.max_failed
        limit = FailureLimit.parse(spec.max_failed if most is None else most) if self._kind.is_limited else None
        not_reached = {reason: self._unreached[state] for reason, state in _FINAL_STATES.items() if state in self._unreached}
        return RunLimits(spec.window_rows, spec.shard_rows, limit, not_reached, is_part=self._owned.run.part is not None)

    def _terms(self, lease: RunLease, files: RunFiles, model: ServedModel) -> ShardTerms:
        run, spec = self._owned.run, self._owned.run.spec
        return ShardTerms(
            spec.model,
            model.version,
            files.source.media,
            owner=run.owner,
            deadline_s=max(1.0, lease.left_s()) if spec.deadline_s else _NO_DEADLINE_S,
            max_queue_depth=model.max_queue_depth,
            partitions=model.partitions,
            headers=spec.headers,
            query=spec.query,
        )

    def _finish(self, lease: RunLease, files: RunFiles, driver: Driver, reason: StopReason) -> DriveResult:
        run, counts = self._owned.run, driver.counts
        if reason is StopReason.LOST:
            raise self._lost()
        if reason is StopReason.INTERRUPT:
            return DriveResult(RunState.RUNNING, counts, driver.mean_rate())
        state = _FINAL_STATES.get(reason, RunState.COMPLETED)
        if state is not RunState.COMPLETED:
            if (error := self._unreached.get(state)) is None:
                return DriveResult(state, counts, driver.mean_rate())
            last = driver.checkpoint
            counts = write_unreached(files.source, files.sink, last.after, last.counts, error, written=driver.written)
        if lease.write(RunChange(state=RunState.PUBLISHING, counts=counts)) in _LOST:
            raise self._lost()
        if not lease.is_held():
            # The store is unreachable. The run resumes from its last commit, which has all rows.
            return DriveResult(RunState.RUNNING, counts, driver.mean_rate())
        lease.on_progress(driver.progress("publishing"))
        details = publish(self._kind, run, files, counts=counts, version=self._version, now=lease.now())
        return DriveResult(state, counts, driver.mean_rate(), details=details)

    def _lost(self) -> Conflict:
        return Conflict(f"another driver has taken run {self._owned.run.id}; this one stopped and wrote nothing more")

    def _record(self, lease: RunLease, result: DriveResult) -> None:
        progress = lease.last_progress
        change = RunChange(
            state=result.state if result.state is not RunState.RUNNING else None,
            counts=result.counts,
            rows_per_s=result.rows_per_s,
            busy=progress.busy if progress else None,
            error_code=result.error_code or None,
            error_message=result.error_message or None,
            details=result.details,
        )
        if lease.stop_reason() is not StopReason.LOST:
            lease.write(change, lease_s=0.0)


def _as_published(manifest: Manifest, lease: RunLease) -> DriveResult:
    """The end that an earlier drive did not come to record."""
    early = RunState.EXPIRED if lease.left_s() < 0.0 else RunState.CANCELLED
    return DriveResult(RunState.COMPLETED if manifest.is_whole else early, manifest.counts, details=manifest.files)


def _with_error(error: PenstockError, result: DriveResult) -> DriveResult:
    return replace(result, error_code=error.kind, error_message=error.message, hint=error.hint or "")
