"""The operations of the store of runs, each described once: the functions of `runs.lua`. Pure; see `ops.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import msgspec

from penstock.broker.contract import CancelStatus, DropStatus, ReopenStatus, TakeStatus, UpdateStatus
from penstock.broker.run_contract import KEEP_S, CreatedRun, RunChange, RunPage, TakenRun
from penstock.broker.store import ops
from penstock.broker.store.ops import Operation, ms, owner_filter
from penstock.broker.store.positions import Arg, RunCreateArgs, RunFields
from penstock.errors import QuotaSpent
from penstock.run import BY_COMMAND, Run, RunCounts, RunPart, RunSpec, RunState, part_id

RUNS_KEY = "ps:runs:{runs}:"
_counts = msgspec.json.Decoder(RunCounts)
_spec = msgspec.json.Decoder(RunSpec)
_part = msgspec.json.Decoder(RunPart)


def create(
    run_id: str,
    spec: RunSpec,
    *,
    owner: str = "",
    keep_s: float = KEEP_S,
    most: int = 0,
    words: Mapping[str, Arg] | None = None,
) -> Operation[CreatedRun]:
    """Store a run. `words`: what extensions are to know of it, by their names.

    Raises `QuotaSpent` if the owner has `most` runs that have not ended; 0: there is no limit.
    """
    args = RunCreateArgs(
        id=run_id,
        owner=owner,
        spec=msgspec.json.encode(spec),
        keep=ms(keep_s),
        deadline=ms(spec.deadline_s),
        command=spec.metadata.get(BY_COMMAND, ""),
        most=most,
    )
    return Operation("run_create", RUNS_KEY, [*args, *ops.words(words or {})], partial(_created, run_id, most))


def room(owner: str, most: int) -> Operation[None]:
    """Raises `QuotaSpent` if `create` would: a caller may look before it prepares what a run needs."""
    return Operation("run_room", RUNS_KEY, [owner, most], lambda reply: None if reply else _refuse(most))


def take(run_id: str, driver: str, *, lease_s: float, dead: str = "") -> Operation[TakenRun]:
    """Become the run's driver, unless the run has ended or another driver's lease lasts. `dead`: a driver that is known to
    have died, whose lease does not count.

    A run ends `failed` once three drivers in a row died without progress.
    """
    return Operation("run_take", RUNS_KEY, [run_id, driver, ms(lease_s), dead], partial(_taken, run_id))


def look(limit: int, *, without: Collection[str] = ()) -> Operation[list[Run]]:
    """Runs that a runner may take: at most one per owner, the oldest, and first of the owner who waits for longest.

    For a run with parts: the first part without a driver, or the run itself once all have ended. `without`: runs to pass
    over.

    Ends the queued runs whose deadline has passed.
    """
    return Operation("run_look", RUNS_KEY, [limit, *without], _listed)


def next_of(run_id: str) -> Operation[Run | None]:
    """What a driver may take of one run: a part of it, or the run itself. None while others drive all there is, or if the
    run has ended.
    """
    return Operation("run_next", RUNS_KEY, [run_id], lambda reply: next(iter(_listed(reply)), None))


def split(run_id: str, driver: str, parts: Sequence[RunPart], counts: RunCounts) -> Operation[UpdateStatus]:
    """Give a run its parts, which are then driven like runs, under ids of their own (`part_id`); `driver` has the run.

    A run that has parts keeps them. Its counts begin at `counts`. A part that does not reach its end ends its run.
    """
    args: list[Arg] = [run_id, driver, msgspec.json.encode(counts), len(parts)]
    for part in parts:
        args += [part_id(run_id, part.number), msgspec.json.encode(part)]
    return Operation("run_split", RUNS_KEY, args, lambda reply: UpdateStatus(reply.decode()))


def parts(run_id: str) -> Operation[list[Run]]:
    """The parts of a run in their order; none of a run that was not split."""
    return Operation("run_parts", RUNS_KEY, [run_id], _listed)


def update(run_id: str, driver: str, change: RunChange, *, lease_s: float) -> Operation[UpdateStatus]:
    """Write what changed and hold the run for another `lease_s`; 0 gives it up. The counts of a part count for its run.

    The first final state stands until `reopen`.
    """
    rows = change.counts.done + change.counts.failed if change.counts else 0
    args = [run_id, driver, ms(lease_s), rows, *_changed_fields(change)]
    return Operation("run_update", RUNS_KEY, args, lambda reply: UpdateStatus(reply.decode()))


def reopen(run_id: str, spec: RunSpec | None = None) -> Operation[ReopenStatus]:
    """Queue a run again that ended failed, cancelled or expired, because a caller wants it resumed; its completed parts
    stay completed. With a `spec` the run goes on with that one, also if it has not ended.
    """
    args: list[Arg] = [run_id, "" if spec is None else msgspec.json.encode(spec)]
    return Operation("run_reopen", RUNS_KEY, args, lambda reply: ReopenStatus(reply.decode()))


def ask_cancel(run_id: str, *, owner: str | None = None) -> Operation[CancelStatus]:
    """End a queued run without a driver at once, and a run with parts unless one puts them together; another run's driver
    learns of the request at its next `update`.
    """
    return Operation("run_ask", RUNS_KEY, [run_id, owner_filter(owner)], lambda reply: CancelStatus(reply.decode()))


def read(run_id: str) -> Operation[Run | None]:
    return Operation("run_read", RUNS_KEY, [run_id], lambda reply: _run(run_id, reply[1]))


def page(
    *,
    owner: str | None = None,
    states: Collection[RunState] = (),
    text: str = "",
    after: str = "",
    limit: int = 20,
    keep_s: float = KEEP_S,
) -> Operation[RunPage]:
    """Runs in any of `states` (empty: in all) whose encoded spec has `text`, newest first, starting behind `after`; none if
    `after` is not known. One call looks at 500 runs at most, so a page may be short and the list still go on.

    Forgets runs that ended `keep_s` ago, as `create` does.
    """
    args: list[Arg] = [ms(keep_s), owner_filter(owner), after, limit, text, *states]
    return Operation("run_list", RUNS_KEY, args, lambda reply: RunPage(_listed(reply[1:]), reply[1].decode()))


def drop(run_id: str, *, owner: str | None = None) -> Operation[DropStatus]:
    """Forget an ended run."""
    return Operation("run_drop", RUNS_KEY, [run_id, owner_filter(owner)], lambda reply: DropStatus(reply.decode()))


def _changed_fields(change: RunChange) -> list[Arg]:
    """Names and values of the record in `runs.lua`."""
    fields: dict[str, Arg | None] = {
        "state": change.state,
        "counts": None if change.counts is None else msgspec.json.encode(change.counts),
        "version": change.version,
        "rate": None if change.rows_per_s is None else repr(change.rows_per_s),
        "busy": None if change.busy is None else repr(change.busy),
        "code": change.error_code,
        # It may name a file whose name is not UTF-8.
        "message": None if change.error_message is None else change.error_message.encode("utf-8", "backslashreplace"),
        "details": None if change.details is None else msgspec.json.encode(change.details),
    }
    return [part for name, value in fields.items() if value is not None for part in (name, value)]


def _refuse(most: int) -> NoReturn:
    raise QuotaSpent(
        f"this owner has {most} runs that have not ended, and may have no more",
        retry_after_s=60.0,
        hint="Wait until some have ended, or cancel some; the operator may raise runs.max_owner_runs.",
    )


def _created(run_id: str, most: int, reply: Sequence[Any]) -> CreatedRun:
    if reply[0] == b"full":
        _refuse(most)
    run = _run(run_id, reply[1])
    assert run is not None
    return CreatedRun(run, new=reply[0] == b"created")


def _taken(run_id: str, reply: Sequence[Any]) -> TakenRun:
    return TakenRun(TakeStatus(reply[0].decode()), _run(run_id, reply[1]))


def _listed(reply: Sequence[Any]) -> list[Run]:
    decoded = (_run(reply[i].decode(), reply[i + 1]) for i in range(1, len(reply), 2))
    return [run for run in decoded if run is not None]


def _run(run_id: str, record: Sequence[bytes] | None) -> Run | None:
    if not record:
        return None
    row = RunFields(*record)
    return Run(
        id=run_id,
        spec=_spec.decode(row.spec),
        state=RunState(row.state.decode()),
        created_at=int(row.created) / 1000,
        owner=row.owner.decode(),
        counts=_counts.decode(row.counts) if row.counts else RunCounts(),
        version=row.version.decode(),
        started_at=_moment(row.started),
        finished_at=_moment(row.finished),
        rows_per_s=float(row.rate or 0),
        busy=float(row.busy) if row.busy else None,
        driver=row.driver.decode(),
        driver_until=_moment(row.until) or 0.0,
        request=row.request.decode(),
        error_code=row.code.decode(),
        error_message=row.message.decode(),
        details=msgspec.json.decode(row.details) if row.details else {},
        drives=int(row.drives or 0),
        parts=int(row.parts or 0),
        part_of=row.part_of.decode(),
        part=_part.decode(row.part) if row.part else None,
    )


def _moment(text: bytes) -> float | None:
    return int(text) / 1000 if text else None
