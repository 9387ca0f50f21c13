"""The store of runs: who works on one, how far it is, what was asked. One method per function of `runs.lua`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.broker.contract import CancelStatus
from penstock.broker.store.encoding import Arg, ms
from penstock.run import Run, RunCounts, RunSpec, RunState

if TYPE_CHECKING:
    from penstock.broker.store.aio import AsyncStore
    from penstock.broker.store.sync import RedisStore

RUNS_KEY = "ps:runs:{runs}:"
KEEP_S = 30 * 86_400.0
_counts = msgspec.json.Decoder(RunCounts)
_spec = msgspec.json.Decoder(RunSpec)


class TakeStatus(StrEnum):
    TAKEN = "taken"
    HELD = "held"  # another driver has it, until `driver_until`
    FINAL = "final"
    MISSING = "missing"


class RunWord(StrEnum):
    """The store's answer to a driver."""

    OK = "ok"
    CANCEL = "cancel"  # written; and somebody asks that the run end
    LOST = "lost"  # another driver has the run: nothing was written
    FINAL = "final"  # it has ended, perhaps by this very call before its reply was lost: nothing was written
    MISSING = "missing"


class DropStatus(StrEnum):
    DROPPED = "dropped"
    LIVE = "live"  # it has not ended: nothing was done
    MISSING = "missing"


class ReopenStatus(StrEnum):
    REOPENED = "reopened"
    LIVE = "live"  # it has not ended: nothing was done
    COMPLETED = "completed"  # there is nothing left to do
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Created:
    """`new` is False when there was a run of this id: `run` is that one, whoever's it is and whatever it was to do."""

    run: Run
    new: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """`run` as it is now; None when missing. With HELD it names the driver that has it."""

    status: TakeStatus
    run: Run | None


@dataclass(frozen=True, slots=True)
class RunChange:
    """What a driver tells of its run; what is None stays as it is. `details` replaces those before."""

    state: RunState | None = None
    counts: RunCounts | None = None
    version: str | None = None
    rows_per_s: float | None = None
    busy: float | None = None
    error_code: str | None = None
    error_message: str | None = None
    details: dict[str, Any] | None = None


class Runs(Protocol):
    """Every call is one atomic, durable step, and may be repeated after a lost reply; raises `StoreUnavailable`.

    `driver` is a name that no other process ever has. `owner` None asks for anybody's. Moments are by Redis' clock.
    """

    def create(self, run_id: str, spec: RunSpec, *, owner: str = "", keep_s: float = KEEP_S) -> Created: ...

    def take(self, run_id: str, driver: str, *, lease_s: float) -> Taken:
        """Become the run's driver, unless it has ended or another driver's lease lasts."""
        ...

    def update(self, run_id: str, driver: str, change: RunChange, *, lease_s: float) -> RunWord:
        """Write what changed and hold the run for `lease_s` more; 0 lets it go. The first final state stands until `reopen`."""
        ...

    def reopen(self, run_id: str) -> ReopenStatus:
        """Queue a run again that ended failed, cancelled or expired; somebody wants it resumed."""
        ...

    def ask_cancel(self, run_id: str, *, owner: str | None = None) -> CancelStatus:
        """A queued run without a driver ends at once; else its driver is told at its next `update`."""
        ...

    def read(self, run_id: str) -> Run | None: ...

    def runs(
        self,
        *,
        owner: str | None = None,
        states: Collection[RunState] = (),
        after: str = "",
        limit: int = 20,
        keep_s: float = KEEP_S,
    ) -> list[Run]:
        """Newest first, in any of `states` (empty: all), those behind `after`; none when `after` is not known.

        Forgets runs that ended `keep_s` ago, as `create` does.
        """
        ...

    def drop(self, run_id: str, *, owner: str | None = None) -> DropStatus:
        """Forget an ended run."""
        ...


class RunStore:
    """`Runs` over the connection of `store`; as little thread-safe as that is."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def create(self, run_id: str, spec: RunSpec, *, owner: str = "", keep_s: float = KEEP_S) -> Created:
        return _created(run_id, self._call("run_create", [run_id, owner, msgspec.json.encode(spec), ms(keep_s)]))

    def take(self, run_id: str, driver: str, *, lease_s: float) -> Taken:
        return _taken(run_id, self._call("run_take", [run_id, driver, ms(lease_s)]))

    def update(self, run_id: str, driver: str, change: RunChange, *, lease_s: float) -> RunWord:
        return RunWord(self._call("run_update", [run_id, driver, ms(lease_s), *_changed(change)]).decode())

    def reopen(self, run_id: str) -> ReopenStatus:
        return ReopenStatus(self._call("run_reopen", [run_id]).decode())

    def ask_cancel(self, run_id: str, *, owner: str | None = None) -> CancelStatus:
        return CancelStatus(self._call("run_ask", [run_id, _whose(owner)]).decode())

    def read(self, run_id: str) -> Run | None:
        return _run(run_id, self._call("run_read", [run_id])[1])

    def runs(
        self,
        *,
        owner: str | None = None,
        states: Collection[RunState] = (),
        after: str = "",
        limit: int = 20,
        keep_s: float = KEEP_S,
    ) -> list[Run]:
        return _listed(self._call("run_list", [ms(keep_s), _whose(owner), after, limit, *states]))

    def drop(self, run_id: str, *, owner: str | None = None) -> DropStatus:
        return DropStatus(self._call("run_drop", [run_id, _whose(owner)]).decode())

    def _call(self, name: str, args: Sequence[Arg]) -> Any:
        return self._store.call(name, RUNS_KEY, args)


class AsyncRunStore:
    """The same for a gateway's event loop: what callers ask, without the driver's part."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def create(self, run_id: str, spec: RunSpec, *, owner: str = "", keep_s: float = KEEP_S) -> Created:
        return _created(run_id, await self._call("run_create", [run_id, owner, msgspec.json.encode(spec), ms(keep_s)]))

    async def ask_cancel(self, run_id: str, *, owner: str | None = None) -> CancelStatus:
        return CancelStatus((await self._call("run_ask", [run_id, _whose(owner)])).decode())

    async def read(self, run_id: str) -> Run | None:
        return _run(run_id, (await self._call("run_read", [run_id]))[1])

    async def runs(
        self,
        *,
        owner: str | None = None,
        states: Collection[RunState] = (),
        after: str = "",
        limit: int = 20,
        keep_s: float = KEEP_S,
    ) -> list[Run]:
        return _listed(await self._call("run_list", [ms(keep_s), _whose(owner), after, limit, *states]))

    async def drop(self, run_id: str, *, owner: str | None = None) -> DropStatus:
        return DropStatus((await self._call("run_drop", [run_id, _whose(owner)])).decode())

    async def _call(self, name: str, args: Sequence[Arg]) -> Any:
        return await self._store.call(name, RUNS_KEY, args)


def _whose(owner: str | None) -> str:
    return "" if owner is None else f"={owner}"


def _changed(change: RunChange) -> list[Arg]:
    told: dict[str, Arg | None] = {
        "state": change.state,
        "counts": None if change.counts is None else msgspec.json.encode(change.counts),
        "version": change.version,
        "rate": None if change.rows_per_s is None else repr(change.rows_per_s),
        "busy": None if change.busy is None else repr(change.busy),
        "code": change.error_code,
        "message": change.error_message,
        "details": None if change.details is None else msgspec.json.encode(change.details),
    }
    return [part for name, value in told.items() if value is not None for part in (name, value)]


def _created(run_id: str, reply: Sequence[Any]) -> Created:
    run = _run(run_id, reply[1])
    assert run is not None
    return Created(run, new=reply[0] == b"created")


def _taken(run_id: str, reply: Sequence[Any]) -> Taken:
    return Taken(TakeStatus(reply[0].decode()), _run(run_id, reply[1]))


def _listed(reply: Sequence[Any]) -> list[Run]:
    found = (_run(reply[i].decode(), reply[i + 1]) for i in range(1, len(reply), 2))
    return [run for run in found if run is not None]


def _run(run_id: str, record: Sequence[bytes] | None) -> Run | None:
    """From the fields of RUN in `runs.lua`, in their order."""
    if not record:
        return None
    (owner, spec, state, created, started, finished, version, counts, rate, busy, driver, until, request, code, message,
     details) = record  # fmt: skip
    return Run(
        id=run_id,
        spec=_spec.decode(spec),
        state=RunState(state.decode()),
        created_at=int(created) / 1000,
        owner=owner.decode(),
        counts=_counts.decode(counts) if counts else RunCounts(),
        version=version.decode(),
        started_at=_moment(started),
        finished_at=_moment(finished),
        rows_per_s=float(rate or 0),
        busy=float(busy) if busy else None,
        driver=driver.decode(),
        driver_until=_moment(until) or 0.0,
        request=request.decode(),
        error_code=code.decode(),
        error_message=message.decode(),
        details=msgspec.json.decode(details) if details else {},
    )


def _moment(text: bytes) -> float | None:
    return int(text) / 1000 if text else None
