"""Runs in plain memory, for unit tests: the rules of the store on Redis, with time passed in by a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
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
from penstock.extensions.webhooks.webhook import Webhook
from penstock.run import BY_COMMAND, Run, RunCounts, RunPart, RunSpec, RunState, part_id


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
        if run.state.final or (run.part and self._whole_of(run).state.final):
            return TakenRun(TakeStatus.FINAL, run)
        if run.driver not in ("", driver, dead) and run.driver_until > now:
            return TakenRun(TakeStatus.HELD, run)
        if run.driver != driver and run.drives >= MOST_DRIVES:
            state = RunState.CANCELLED if run.request == "cancel" else RunState.FAILED
            self._end(ended := replace(run, state=state, error_code=LOST_CODE, error_message=LOST_WHY))
            if run.part:
                self._follow_part(ended)
            return TakenRun(TakeStatus.FINAL, self._shown(self._runs[run_id]))
        drives = run.drives + (run.driver != driver)
        self._runs[run_id] = replace(run, driver=driver, driver_until=now + lease_s, drives=drives)
        self._turns[run.owner] = now
        return TakenRun(TakeStatus.TAKEN, self._shown(self._runs[run_id]))

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
        run = _left(run, lease_s)
        rows = run.counts.done + run.counts.failed if change.counts else 0
        if rows > self._most.get(run_id, 0) or not lease_s:
            self._most[run_id] = max(rows, self._most.get(run_id, 0))
            run = replace(run, drives=0)
        if run.state is not RunState.QUEUED and run.started_at is None:
            run = replace(run, started_at=now)
        self._runs[run_id] = run
        if run.state.final:
            self._end(run)
        if run.part:
            return self._follow_part(run)
        return UpdateStatus.CANCEL if run.request == "cancel" else UpdateStatus.OK

    def _whole_of(self, part: Run) -> Run:
        return self._runs[part.part_of]

    def _follow_part(self, part: Run) -> UpdateStatus:
        """What a run shows of its parts, after one of them has changed."""
        whole, parts, now = self._whole_of(part), self.parts(part.part_of), self._clock()
        counts = RunCounts(
            total=whole.counts.total, done=sum(run.counts.done for run in parts), failed=sum(run.counts.failed for run in parts)
        )
        driven = [run for run in parts if run.driver_until > now and not run.state.final]
        self._runs[whole.id] = whole = replace(
            whole,
            counts=counts,
            rows_per_s=sum(run.rows_per_s for run in driven),
            busy=min(1.0, sum(run.busy or 0.0 for run in driven)),
            state=RunState.RUNNING if whole.state is RunState.QUEUED else whole.state,
        )
        if part.state.final and part.state is not RunState.COMPLETED and not whole.state.final:
            ended = {name: getattr(part, name) for name in ("state", "error_code", "error_message", "details")}
            self._end(replace(whole, **ended))
        return UpdateStatus.LEAVE if self._whole_of(part).state.final else UpdateStatus.OK

    def split(self, run_id: str, driver: str, parts: Sequence[RunPart], counts: RunCounts) -> UpdateStatus:
        run = self._runs.get(run_id)
        if run is None:
            return UpdateStatus.MISSING
        if run.driver != driver:
            return UpdateStatus.LOST
        if run.state.final:
            return UpdateStatus.FINAL
        if run.parts:
            return UpdateStatus.OK
        for part in parts:
            name = part_id(run_id, part.number)
            new = Run(id=name, spec=run.spec, state=RunState.QUEUED, created_at=run.created_at, part=part, part_of=run_id)
            self._runs[name] = replace(new, owner=run.owner, version=run.version)
        self._runs[run_id] = replace(run, parts=len(parts), counts=counts)
        return UpdateStatus.OK

    def parts(self, run_id: str) -> list[Run]:
        return [self._shown(part) for part in self._parts_of(self._runs[run_id])] if run_id in self._runs else []

    def next_of(self, run_id: str) -> Run | None:
        run = self._runs.get(run_id)
        return None if run is None or run.state.final or run.driver_until > self._clock() else self._takeable(run)

    def _takeable(self, run: Run) -> Run | None:
        open_parts = [part for part in self.parts(run.id) if not part.state.final]
        if not open_parts:
            return self._shown(run)
        free = [part for part in open_parts if part.driver_until <= self._clock()]
        return min(free, key=lambda part: part.driver_until, default=None)

    def _shown(self, run: Run) -> Run:
        """The record as it is read: a part has the spec of its run, a run with parts the driver with the longest lease."""
        if run.part:
            return replace(run, spec=self._whole_of(run).spec)
        open_parts = [part for part in self._parts_of(run) if not part.state.final]
        longest = max(open_parts, key=lambda part: part.driver_until, default=run)
        if longest.driver_until <= run.driver_until:
            return run
        return replace(run, driver=longest.driver, driver_until=longest.driver_until)

    def _parts_of(self, run: Run) -> list[Run]:
        return [self._runs[part_id(run.id, number)] for number in range(run.parts)]

    def reopen(self, run_id: str, spec: RunSpec | None = None) -> ReopenStatus:
        run = self._runs.get(run_id)
        if run is None:
            return ReopenStatus.MISSING
        if spec is not None and run.state is not RunState.COMPLETED:
            self._runs[run_id] = run = replace(run, spec=spec)
        if not run.state.final:
            return ReopenStatus.LIVE
        if run.state is RunState.COMPLETED:
            return ReopenStatus.COMPLETED
        plain = {"finished_at": None, "request": "", "error_code": "", "error_message": "", "driver": "", "driver_until": 0.0}
        self._runs[run_id] = replace(run, state=RunState.QUEUED, drives=0, **plain)
        for part in self._parts_of(run):
            if part.state.final and part.state is not RunState.COMPLETED:
                self._runs[part.id] = replace(part, state=RunState.QUEUED, drives=0, **plain)
                self._most.pop(part.id, None)
        self._most.pop(run_id, None)
        self.outbox.take_back(run_id)
        return ReopenStatus.REOPENED

    def ask_cancel(self, run_id: str, *, owner: str | None = None) -> CancelStatus:
        run, now = self._runs.get(run_id), self._clock()
        if run is None or owner not in (None, run.owner):
            return CancelStatus.MISSING
        if run.state.final:
            return CancelStatus.FINAL
        idle = (run.parts or run.state is RunState.QUEUED) and run.driver_until <= now
        asked = self._runs[run_id] = replace(run, request="cancel")
        if idle:
            self._end(replace(asked, state=RunState.CANCELLED))
        return CancelStatus.CANCELLED if idle else CancelStatus.REQUESTED

    def read(self, run_id: str) -> Run | None:
        run = self._runs.get(run_id)
        return self._shown(run) if run else None

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
        newest = sorted(map(self._shown, self._wholes()), key=lambda run: (run.created_at, run.id), reverse=True)
        if after:
            places = [place for place, run in enumerate(newest) if run.id == after]
            newest = newest[places[0] + 1 :] if places else []
        return [run for run in newest if owner in (None, run.owner) and (not states or run.state in states)][:limit]

    def _wholes(self) -> list[Run]:
        return [run for run in self._runs.values() if not run.part]

    def look(self, limit: int, *, without: Collection[str] = ()) -> list[Run]:
        now = self._clock()
        for run in self._wholes():
            deadline_s = run.spec.deadline_s
            if run.state is RunState.QUEUED and deadline_s and run.created_at + deadline_s <= now:
                self._end(replace(run, state=RunState.EXPIRED))
        oldest: dict[str, Run] = {}
        for run in sorted(self._wholes(), key=lambda run: (run.created_at, run.id)):
            is_free = run.id not in without and BY_COMMAND not in run.spec.metadata
            if is_free and (found := self.next_of(run.id)):
                oldest.setdefault(run.owner, found)
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
        if not run.part:
            self.outbox.note_end(run.id, run.state.value, now)

    def _forget_old(self, keep_s: float) -> None:
        now = self._clock()
        ended = [(run.id, now - run.finished_at) for run in self._wholes() if run.finished_at is not None]
        for run_id, age_s in ended:
            if age_s >= keep_s and (age_s >= HELD_MOST_S or not self.outbox.holds(run_id)):
                self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        for part in self._parts_of(self._runs.pop(run_id)):
            del self._runs[part.id]
        self.outbox.drop(run_id)


def _left(run: Run, lease_s: float) -> Run:
    """The run if its driver leaves it: one with parts that is to be cancelled has nobody else who would hear of it."""
    is_to_end = not lease_s and run.parts and run.request == "cancel" and not run.state.final
    return replace(run, state=RunState.CANCELLED) if is_to_end else run
