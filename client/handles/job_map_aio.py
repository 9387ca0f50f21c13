"""`map`: inputs are submitted in groups, and the oldest unfinished jobs are asked for together, with their outputs (D148)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.client import display, flows, protocol
from penstock.client.handles import at_once
from penstock.client.handles.at_once import MapPlan
from penstock.client.problems import ended_error
from penstock.errors import BadRequest, InvalidInput, Overloaded, PenstockError, TooLarge

if TYPE_CHECKING:
    from penstock.client.aio import AsyncClient
    from penstock.client.handles.job_handle_aio import AsyncJobHandle

# A group whose inputs take longer to read is sent before it is full, so that no input waits long for the next one.
_READ_WITHIN_S = 0.005
_OPEN = object()


@dataclass(slots=True, eq=False)
class AsyncMapRow:
    """One input on its way. `outcome`: its output, or the error in its place. `handle` is None if its submit was refused."""

    handle: AsyncJobHandle | None
    outcome: Any = _OPEN


async def outputs(
    client: AsyncClient, inputs: Iterable[Any] | AsyncIterable[Any], plan: MapPlan, *, progress: bool
) -> AsyncIterator[Any]:
    """The outputs of one job per input, in the order of the inputs or as the jobs end. `progress`: whether to show a bar."""
    protocol.check_window(plan.in_flight)
    with display.progress_bar(plan.model, shown=progress) as on_step:
        done, total = 0, display.total_of(inputs)
        async with contextlib.aclosing(_outputs(client, inputs, plan)) as values:
            async for value in values:
                done += 1
                on_step(done, total, "")
                yield value


async def _outputs(client: AsyncClient, inputs: Iterable[Any] | AsyncIterable[Any], plan: MapPlan) -> AsyncGenerator[Any, None]:
    rows: list[AsyncMapRow] = []
    source, has_more = at_once.opened_aio(inputs), True
    try:
        while has_more or rows:
            ended = next((row for row in rows[: 1 if plan.ordered else None] if row.outcome is not _OPEN), None)
            room = min(plan.group, plan.in_flight - len(rows))
            if has_more and (room == plan.group or (room and not ended)):
                group = await _read(source, room)
                has_more = bool(group)
                rows += await _submitted(client, plan, group)
            elif ended is None:
                await _watch(client, [row for row in rows if row.outcome is _OPEN][: plan.watched])
            else:
                rows.remove(ended)
                yield _output(ended, plan)
    finally:
        left = [row.handle for row in rows if row.handle and row.outcome is _OPEN]
        # A job that has just ended, or a gateway that does not answer, must not hide why the iteration stops.
        await at_once.gathered_aio([handle.cancel for handle in left])


async def _read(source: AsyncIterator[Any], room: int) -> list[Any]:
    """The next inputs; none at their end."""
    group, began_at = list[Any](), time.monotonic()
    async for value in source:
        group.append(value)
        if len(group) == room or time.monotonic() - began_at > _READ_WITHIN_S:
            break
    return group


async def _submitted(client: AsyncClient, plan: MapPlan, group: list[Any]) -> list[AsyncMapRow]:
    if len(group) > 1 and plan.content_type is None and all(map(protocol.travels_as_json, group)):
        # One of them is refused, or there is no room for all: each is submitted by itself, and has an error of its own.
        with contextlib.suppress(BadRequest, InvalidInput, TooLarge, Overloaded):
            return [AsyncMapRow(handle) for handle in await client.submit_many(plan.model, group, **plan.options)]
    submit = partial(client.submit, plan.model, content_type=plan.content_type, **plan.options)
    made = await at_once.gathered_aio([partial(submit, value) for value in group])
    return [AsyncMapRow(None, one) if isinstance(one, PenstockError) else AsyncMapRow(one) for one in made]


async def _watch(client: AsyncClient, rows: list[AsyncMapRow]) -> None:
    """Wait until at least one of these jobs has ended, and give all of them that have their outcomes."""
    jobs = {row.handle.id: (row, row.handle) for row in rows if row.handle}
    views = [handle.view for _, handle in jobs.values()]
    apart = []
    for view in await client.follow(flows.ended_flow(views, timeout_s=None, now=time.monotonic(), outputs=True)):
        row, handle = jobs[view.id]
        handle.view = view
        if "output" in view.body:
            row.outcome = view.body["output"]
        elif view.status != "succeeded":
            row.outcome = ended_error(view)
        else:
            apart.append((row, handle))
    found = await at_once.gathered_aio([handle.result for _, handle in apart])
    for (row, _), outcome in zip(apart, found, strict=True):
        row.outcome = outcome


def _output(row: AsyncMapRow, plan: MapPlan) -> Any:
    if isinstance(row.outcome, PenstockError) and not plan.keeps_errors:
        raise row.outcome
    return row.outcome
