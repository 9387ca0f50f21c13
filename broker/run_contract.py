"""The interface of the store of runs: who works on a run, how far it is, and what callers asked of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from penstock.broker.contract import CancelStatus
from penstock.run import Run, RunCounts, RunPart, RunSpec, RunState

if TYPE_CHECKING:
    from penstock.extensions.webhooks.webhook import Webhook

KEEP_S = 30 * 86_400.0
MOST_DRIVES = 3
LOST_CODE = "driver_lost"
LOST_WHY = (
    "the process that drove the run died three times in a row without getting any further; "
    "perhaps a row of the input needs more memory than that process may have"
)


class TakeStatus(StrEnum):
    TAKEN = "taken"
    HELD = "held"  # another driver has the run until `driver_until`
    FINAL = "final"
    MISSING = "missing"


class UpdateStatus(StrEnum):
    """The store's answer to a driver's update."""

    OK = "ok"
    CANCEL = "cancel"  # the change was written, and somebody asks that the run end
    LEAVE = "leave"  # the change was written, and the run of this part has ended: the part is left as it is
    LOST = "lost"  # another driver has the run: nothing was written
    FINAL = "final"  # the run has ended, perhaps by this very call before its reply was lost: nothing was written
    MISSING = "missing"


class DropStatus(StrEnum):
    DROPPED = "dropped"
    LIVE = "live"  # the run has not ended: nothing was done
    MISSING = "missing"


class ReopenStatus(StrEnum):
    REOPENED = "reopened"
    LIVE = "live"  # the run has not ended: nothing was done
    COMPLETED = "completed"  # the run has nothing left to do
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CreatedRun:
    """`new` is False if the id was taken: `run` is then the earlier run, whatever its owner and its specification."""

    run: Run
    new: bool


@dataclass(frozen=True, slots=True)
class TakenRun:
    """`run` is the record as it is now, None if missing. With HELD the record names the driver that has the run."""

    status: TakeStatus
    run: Run | None


@dataclass(frozen=True, slots=True)
class RunChange:
    """What a driver reports of its run; fields that are None stay as they are. `details` replaces all earlier details."""

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

    `driver` is a name that no other process ever has. With `owner` None the run may be anybody's. Moments are by Redis' clock.
    """

    def now(self) -> float:
        """Redis' clock, as Unix seconds: what a run's moments are compared with."""
        ...

    def create(
        self, run_id: str, spec: RunSpec, *, owner: str = "", keep_s: float = KEEP_S, webhook: Webhook | None = None
    ) -> CreatedRun:
        """Store a run. Its `webhook` hears of its end; if the run is opened again before that, only of the end that follows."""
        ...

    def take(self, run_id: str, driver: str, *, lease_s: float, dead: str = "") -> TakenRun:
        """Become the run's driver, unless the run has ended or another driver's lease lasts. `dead`: a driver that is known to
        have died, whose lease does not count.

        A run of which `MOST_DRIVES` drivers in a row died without getting any further ends `failed`.
        """
        ...

    def look(self, limit: int, *, without: Collection[str] = ()) -> list[Run]:
        """Runs that a runner may take: at most one per owner, the oldest, and first of the owner who waits for longest.

        Of a run with parts, the first part that nobody drives, or the run itself once all have ended. `without`: runs to pass
        over.

        Ends the queued runs whose deadline has passed.
        """
        ...

    def next_of(self, run_id: str) -> Run | None:
        """What a driver may take of one run: a part of it, or the run itself. None while others drive all there is, or if the
        run has ended.
        """
        ...

    def split(self, run_id: str, driver: str, parts: Sequence[RunPart], counts: RunCounts) -> UpdateStatus:
        """Give a run its parts, which are then driven like runs, under ids of their own (`part_id`); `driver` has the run.

        A run that has parts keeps them. Its counts begin at `counts`. A part that does not reach its end ends its run.
        """
        ...

    def parts(self, run_id: str) -> list[Run]:
        """The parts of a run in their order; none of a run that was not split."""
        ...

    def update(self, run_id: str, driver: str, change: RunChange, *, lease_s: float) -> UpdateStatus:
        """Write what changed and hold the run for another `lease_s`; 0 gives it up. The counts of a part count for its run.

        The first final state stands until `reopen`.
        """
        ...

    def reopen(self, run_id: str, spec: RunSpec | None = None) -> ReopenStatus:
        """Queue a run again that ended failed, cancelled or expired, because a caller wants it resumed; its completed parts
        stay completed. With a `spec` the run goes on with that one, also if it has not ended.
        """
        ...

    def ask_cancel(self, run_id: str, *, owner: str | None = None) -> CancelStatus:
        """End a queued run without a driver at once, and a run with parts unless one puts them together; another run's driver
        learns of the request at its next `update`.
        """
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
        """Runs in any of `states` (empty: in all), newest first, starting behind `after`; none if `after` is not known.

        Forgets runs that ended `keep_s` ago, as `create` does.
        """
        ...

    def drop(self, run_id: str, *, owner: str | None = None) -> DropStatus:
        """Forget an ended run."""
        ...
