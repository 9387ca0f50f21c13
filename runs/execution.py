"""One run from the moment a process takes it until it ends or is left: files opened, rows driven, output published."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.blob_place import BlobPlace
from penstock.broker.blobs.places import open_blobs
from penstock.broker.run_contract import RunChange
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import Conflict, NotFound, PenstockError, StoreUnavailable
from penstock.run import RunCounts, RunState
from penstock.runs.driver import Driver, RunLimits, StopReason
from penstock.runs.lease import OwnedRun, RunLease
from penstock.runs.model_lookup import Served, Slots, served, slots_of
from penstock.runs.openai.batch import OpenAISource
from penstock.runs.openai.run import OPENAI, open_batch, tell_unfinished
from penstock.runs.progress import RunProgress
from penstock.runs.publishing import publish, published_before
from penstock.runs.run_files import RunFiles, open_source, opened
from penstock.runs.shards.push_listener import PushListener
from penstock.runs.shards.shard_queue import ShardQueue, Terms

log = logging.getLogger("penstock.runs")

# A shard of a run without a deadline waits as long as it takes; the store wants a number.
_LONG_S = 30 * 86_400.0
_PAUSE_S = 0.2
_ENDS = {StopReason.CANCEL: RunState.CANCELLED, StopReason.EXPIRE: RunState.EXPIRED}


@dataclass(frozen=True, slots=True)
class RunServices:
    """Where runs are driven: the store, the blobs that its workers read, a folder for what goes to URLs in the end.

    `patience_s`: how long the model may be unknown at first, because its worker is just starting.
    """

    redis_url: str
    blobs: BlobPlace
    state_dir: Path
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """What whoever resumes a run lets it do beyond its spec: go on over a changed input or version; fail more rows."""

    changes: bool = False
    max_failed: int | None = None


@dataclass(frozen=True, slots=True)
class DriveResult:
    """How a drive ended. `state` is RUNNING where the run was only left. `details`: what was published, or the faults.

    `hint`: what is to be done about the error where trying again as it is would end the same way.
    """

    state: RunState
    counts: RunCounts | None = None
    rows_per_s: float | None = None
    error_code: str = ""
    error_message: str = ""
    details: dict[str, Any] | None = None
    hint: str = ""


class Execution:
    """`execute` is for one thread, once; any other may call `interrupt`. The run must have been taken as `held` says."""

    def __init__(
        self, held: OwnedRun, shop: RunServices, *, told: Callable[[RunProgress], None], allowed: ResumeOptions | None = None
    ) -> None:
        self._held, self._shop, self._told, self._allowed = held, shop, told, allowed or ResumeOptions()
        self._interrupted = False
        self._hold: RunLease | None = None
        self._version = held.run.version

    def interrupt(self) -> None:
        """Leave the run at its next commit; it can be resumed."""
        self._interrupted = True
        if self._hold is not None:
            self._hold.interrupt()

    def execute(self) -> DriveResult:
        """Returns when the run has ended or was left, and the store knows as far as it could be told."""
        with closing(RedisStore(self._shop.redis_url, name="penstock-run-beat")) as store:
            hold = self._hold = RunLease(self._held, RunStore(store), count_slots=lambda: self._slots(store), told=self._told)
            hold.start()
            if self._interrupted:
                hold.interrupt()
            try:
                left = self._ended(hold)
            finally:
                hold.close()
            self._say_end(hold, left)
            return left

    def _slots(self, store: RedisStore) -> Slots:
        return slots_of(store.workers(), self._held.run.spec.model, self._version)

    def _ended(self, hold: RunLease) -> DriveResult:
        try:
            return self._driven(hold)
        except PenstockError as error:
            faults = getattr(error, "errors", None)
            details = {"errors": faults} if faults else None
            return _failed(error, DriveResult(RunState.FAILED, details=details))
        except OSError as error:
            return DriveResult(RunState.FAILED, error_code="io_error", error_message=str(error))

    def _driven(self, hold: RunLease) -> DriveResult:
        run = self._held.run
        hold.say(RunChange(state=RunState.VALIDATING))
        if (manifest := published_before(run)) is not None:
            return DriveResult(RunState.COMPLETED, manifest.counts)
        if run.spec.kind == OPENAI:
            # Before its model is looked for: a first line that cannot be read names none.
            open_batch(run.spec)
        with ExitStack() as open_things:
            store = open_things.enter_context(closing(RedisStore(self._shop.redis_url, name="penstock-run")))
            model = self._await_model(store, hold)
            if model is None:
                return DriveResult(_ENDS.get(hold.stop(), RunState.RUNNING))
            self._version = model.version
            hold.look_at_slots()
            source, first_line = open_source(run.spec, model.input_schema)
            open_things.callback(source.close)
            files = opened(
                run,
                source,
                version=model.version,
                first_line=first_line,
                state_dir=self._shop.state_dir / "runs",
                accept=self._allowed.changes,
            )
            open_things.callback(files.close)
            hold.say(RunChange(state=RunState.RUNNING, version=model.version))
            return self._drive(hold, store, files, model)

    def _await_model(self, store: RedisStore, hold: RunLease) -> Served | None:
        """What serves the run's model; None when told to stop first. Raises `NotFound` when patience is at its end."""
        run, give_up_at = self._held.run, time.monotonic() + self._shop.patience_s
        wanted = "" if self._allowed.changes else run.version or run.spec.version
        while not hold.stop():
            try:
                return served(store, run.spec.model, version=wanted)
            except NotFound:
                if time.monotonic() > give_up_at:
                    raise
                hold.told(RunProgress(stage="starting", note=f"{run.spec.model} is being loaded"))
            except StoreUnavailable as away:
                hold.told(RunProgress(stage="starting", note=away.message))
            time.sleep(_PAUSE_S)
        return None

    def _drive(self, hold: RunLease, store: RedisStore, files: RunFiles, model: Served) -> DriveResult:
        run, spec = self._held.run, self._held.run.spec
        most = spec.max_failed if self._allowed.max_failed is None else self._allowed.max_failed
        pace = RunLimits(window_rows=spec.window_rows, shard_rows=spec.shard_rows, max_failed=most)
        driver = Driver(files.source, files.sink, pace=pace, place=files.place, watch=hold, commit=files.commit)
        terms = Terms(
            spec.model,
            model.version,
            files.source.media,
            owner=run.owner,
            deadline_s=max(1.0, run.created_at + spec.deadline_s - time.time()) if spec.deadline_s else _LONG_S,
            max_queue_depth=model.max_queue_depth,
        )
        with closing(PushListener(self._shop.redis_url)) as ears:
            desk = ShardQueue(store, open_blobs(self._shop.blobs), ears, terms=terms, inputs=driver.inputs)
            try:
                why = driver.drive(desk)
            except PenstockError as error:
                return _failed(error, DriveResult(RunState.FAILED, driver.look("failed").counts, driver.mean_rate()))
        return self._finish(hold, files, driver, why)

    def _finish(self, hold: RunLease, files: RunFiles, driver: Driver, why: StopReason) -> DriveResult:
        run, counts = self._held.run, driver.counts
        if why is StopReason.LOST:
            raise Conflict(f"another driver has taken run {run.id}; this one stopped and wrote nothing more")
        if why is StopReason.INTERRUPT:
            return DriveResult(RunState.RUNNING, counts, driver.mean_rate())
        state = _ENDS.get(why, RunState.COMPLETED)
        if state is not RunState.COMPLETED and not isinstance(files.source, OpenAISource):
            return DriveResult(state, counts, driver.mean_rate())
        if state is not RunState.COMPLETED and isinstance(files.source, OpenAISource):
            place = driver.place
            counts = tell_unfinished(files.source, files.sink, place.after, place.counts, state)
        hold.say(RunChange(state=RunState.PUBLISHING, counts=counts))
        hold.told(driver.look("publishing"))
        details = publish(run, files, counts=counts, version=self._version)
        return DriveResult(state, counts, driver.mean_rate(), details=details)

    def _say_end(self, hold: RunLease, left: DriveResult) -> None:
        look = hold.last
        change = RunChange(
            state=left.state if left.state is not RunState.RUNNING else None,
            counts=left.counts,
            rows_per_s=left.rows_per_s,
            busy=look.busy if look else None,
            error_code=left.error_code or None,
            error_message=left.error_message or None,
            details=left.details,
        )
        if hold.stop() is not StopReason.LOST:
            hold.say(change, lease_s=0.0)


def _failed(error: PenstockError, left: DriveResult) -> DriveResult:
    return replace(left, error_code=error.kind, error_message=error.message, hint=error.hint or "")
