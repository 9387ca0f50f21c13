"""Runs in plain memory, for unit tests: the rules of the store on Redis, with time passed in by a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import fields

from msgspec.structs import replace

from penstock.broker.contract import CancelStatus
from penstock.broker.memory.outbox import HELD_MOST_S, MemoryOutbox
from penstock.broker.run_contract import (
    KEEP_S,
    LOST_CODE,
    LOST_WHY,
    MOST_DRIVES,
    CreatedRun,
    DropStatus,
    ReopenStatus,
    RunChange,
    TakenRun,
    TakeStatus,
    UpdateStatus,
)
from penstock.outbound.webhook import Webhook
from penstock.run import BY_COMMAND, Run, RunSpec, RunState


class MemoryRunStore:
    """See `Runs`. `clock` answers Unix seconds; a test moves it by hand."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._runs: dict[str, Run] = {}
        # The most rows that a run has had, and when an owner's run was last taken, or the first one came.
        self._most: dict[str, int] = {}
        self._turns: dict[str, float] = {}
        self.outbox = MemoryOutbox(clock, "run")

    def now(self) -> float:
        return self._clock()

    def create(
        self, run_id: str, spec: RunSpec, *, owner: str = "", keep_s: float = KEEP_S, webhook: Webhook | None = None
    ) -> CreatedRun:
        self._forget_old(keep_s)
        found = self._runs.get(run_id)
        if found is not None:
            return CreatedRun(found, new=False)
        self._runs[run_id] = Run(id=run_id, spec=spec, state=RunState.QUEUED, created_at=self._clock(), owner=owner)
        self._turns.setdefault(owner, self._clock())
        if webhook is not None:
            self.outbox.add(run_id, webhook, owner)
        return CreatedRun(self._runs[run_id], new=True)

    def take(self, run_id: str, driver: str, *, lease_s: float, dead: str = "") -> TakenRun:
        run, now = self._runs.get(run_id), self._clock()
        if run is None:
            return TakenRun(TakeStatus.MISSING, None)
        if run.state.final:
            return TakenRun(TakeStatus.FINAL, run)
        if run.driver not in ("", driver, dead) and run.driver_until > now:
            return TakenRun(TakeStatus.HELD, run)
        if run.driver != driver and run.drives >= MOST_DRIVES:
            state = RunState.CANCELLED if run.request == "cancel" else RunState.FAILED
            self._end(replace(run, state=state, error_code=LOST_CODE, error_message=LOST_WHY))
            return TakenRun(TakeStatus.FINAL, self._runs[run_id])
        drives = run.drives + (run.driver != driver)
        self._runs[run_id] = replace(run, driver=driver, driver_until=now + lease_s, drives=drives)
        self._turns[run.owner] = now
        return TakenRun(TakeStatus.TAKEN, self._runs[run_id])

    def update(self, run_id: str, driver: str, change: RunChange, *, lease_s: float) -> UpdateStatus:
        run, now = self._runs.get(run_id), self._clock()
        if run is None:
            return UpdateStatus.MISSING
        if run.driver != driver:
            return UpdateStatus.LOST
        if run.state.final:
            return UpdateStatus.FINAL
        changed = {field.name: getattr(change, field.name) for field in fields(change)}
        run = replace(run, driver_until=now + lease_s, **{name: value for name, value in changed.items() if value is not None})
        rows = run.counts.done + run.counts.failed if change.counts else 0
        if rows > self._most.get(run_id, 0) or not lease_s:
            self._most[run_id] = max(rows, self._most.get(run_id, 0))
            run = replace(run, drives=0)
        if run.state is not RunState.QUEUED and run.started_at is None:
            run = replace(run, started_at=now)
        self._runs[run_id] = run
        if run.state.final:
            self._end(run)
        return UpdateStatus.CANCEL if run.request == "cancel" else UpdateStatus.OK

    def reopen(self, run_id: str) -> ReopenStatus:
        run = self._runs.get(run_id)
        if run is None:
            return ReopenStatus.MISSING
        if not run.state.final:
            return ReopenStatus.LIVE
        if run.state is RunState.COMPLETED:
            return ReopenStatus.COMPLETED
        plain = {"finished_at": None, "request": "", "error_code": "", "error_message": "", "driver": "", "driver_until": 0.0}
        self._runs[run_id] = replace(run, state=RunState.QUEUED, drives=0, **plain)
        self._most.pop(run_id, None)
        self.outbox.take_back(run_id)
        return ReopenStatus.REOPENED

    def ask_cancel(self, run_id: str, *, owner: str | None = None) -> CancelStatus:
        run, now = self._runs.get(run_id), self._clock()
        if run is None or owner not in (None, run.owner):
            return CancelStatus.MISSING
        if run.state.final:
            return CancelStatus.FINAL
        idle = run.state is RunState.QUEUED and run.driver_until <= now
        asked = self._runs[run_id] = replace(run, request="cancel")
        if idle:
            self._end(replace(asked, state=RunState.CANCELLED))
        return CancelStatus.CANCELLED if idle else CancelStatus.REQUESTED

    def read(self, run_id: str) -> Run | None:
        return self._runs.get(run_id)

    def runs(
        self,
        *,
        owner: str | None = None,
        states: Collection[RunState] = (),
        after: str = "",
        limit: int = 20,
        keep_s: float = KEEP_S,
    ) -> list[Run]:
        self._forget_old(keep_s)
        newest = sorted(self._runs.values(), key=lambda run: (run.created_at, run.id), reverse=True)
        if after:
            places = [place for place, run in enumerate(newest) if run.id == after]
            newest = newest[places[0] + 1 :] if places else []
        return [run for run in newest if owner in (None, run.owner) and (not states or run.state in states)][:limit]

    def look(self, limit: int) -> list[Run]:
        now = self._clock()
        for run in list(self._runs.values()):
            deadline_s = run.spec.deadline_s
            if run.state is RunState.QUEUED and deadline_s and run.created_at + deadline_s <= now:
                self._end(replace(run, state=RunState.EXPIRED))
        oldest: dict[str, Run] = {}
        for run in sorted(self._runs.values(), key=lambda run: (run.created_at, run.id)):
            if not run.state.final and run.driver_until <= now and BY_COMMAND not in run.spec.metadata:
                oldest.setdefault(run.owner, run)
        return [oldest[owner] for owner in sorted(oldest, key=lambda owner: (self._turns.get(owner, now), owner))][:limit]

    def drop(self, run_id: str, *, owner: str | None = None) -> DropStatus:
        run = self._runs.get(run_id)
        if run is None or owner not in (None, run.owner):
            return DropStatus.MISSING
        if not run.state.final:
            return DropStatus.LIVE
        self._forget(run_id)
        return DropStatus.DROPPED

    def _end(self, run: Run) -> None:
        now = self._clock()
        self._runs[run.id] = replace(run, finished_at=now, driver_until=now)
        self.outbox.note_end(run.id, run.state.value, now)

    def _forget_old(self, keep_s: float) -> None:
        now = self._clock()
        ended = [(run.id, now - run.finished_at) for run in self._runs.values() if run.finished_at is not None]
        for run_id, age_s in ended:
            if age_s >= keep_s and (age_s >= HELD_MOST_S or not self.outbox.holds(run_id)):
                self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        del self._runs[run_id]
        self.outbox.drop(run_id)
