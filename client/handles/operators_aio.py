"""What operators do to models and workers that serve and to the failed inbox, and the log of it all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Literal

from penstock.client import calls, protocol

if TYPE_CHECKING:
    from penstock.client.aio import AsyncClient


class AsyncOperators:
    """`client.operators`: each call is safe to repeat, needs a key with the role manage, and is in the gateway's audit log."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def pause(self, model: str) -> dict[str, Any]:
        """The model. Its jobs are accepted and wait until `resume`; what runs already ends. Raises `NotFound`."""
        return protocol.object_of(await self._client.send(calls.act_call("models", model, "pause")))

    async def resume(self, model: str) -> dict[str, Any]:
        """The model, whose jobs run again."""
        return protocol.object_of(await self._client.send(calls.act_call("models", model, "resume")))

    async def limit(self, model: str, **limits: float | None) -> dict[str, Any]:
        """The model, with these limits for the jobs that come from now on, such as `max_queue_depth=500`; None: as in settings.

        Raises `InvalidInput`, which names the limits that can be changed.
        """
        return protocol.object_of(await self._client.send(calls.limits_call(model, limits)))

    async def purge(self, model: str) -> int:
        """Cancel all jobs of the model that wait, in steps of up to 500. How many were cancelled."""
        cancelled, has_more = 0, True
        while has_more:
            step = protocol.object_of(await self._client.send(calls.act_call("models", model, "purge")))
            cancelled, has_more = cancelled + int(step["cancelled"]), bool(step["has_more"])
        return cancelled

    async def drain(self, worker: str) -> dict[str, Any]:
        """Have a worker end what it holds and take nothing more, until `resume_worker`. Raises `NotFound`."""
        return protocol.object_of(await self._client.send(calls.act_call("workers", worker, "drain")))

    async def resume_worker(self, worker: str) -> dict[str, Any]:
        return protocol.object_of(await self._client.send(calls.act_call("workers", worker, "resume")))

    async def audit(self, *, before: int | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest acts of operators before the one with this number, newest first, at most 200."""
        return protocol.rows_of(await self._client.send(calls.audit_call(before, limit)))


class AsyncFailedInbox:
    """`client.failed`: jobs without an output, until they are replayed or dismissed: those of the key's owner, or of all owners
    for a key with the role manage.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def jobs(
        self, model: str | None = None, *, group: str | None = None, fault: Literal["caller", "model"] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The jobs as `GET /v1/failed` has them, newest first, read as the iteration goes on. Raises `NotFound`.

        `group`: those with one fault, by the `group` that each job has. `fault`: whose it is.
        """
        after, has_more = "", True
        while has_more:
            has_more = False
            async for line in self._client.streamed(calls.failed_call(model, after)):
                job: dict[str, Any] = json.loads(line)
                after, has_more = str(job["id"]), True
                if group in (None, job["group"]) and fault in (None, job["fault"]):
                    yield job

    async def dismiss(self, jobs: Iterable[str]) -> int:
        """Take these jobs off the inbox; they stay as they are. How many were there. Raises `NotFound`."""
        parts = [protocol.object_of(await self._client.send(call)) for call in calls.dismiss_calls(jobs)]
        return sum(int(part["done"]) for part in parts)

    async def dismiss_all(self, model: str, *, group: str = "") -> int:
        """Take all jobs of the model, or those of a group, off the inbox, in steps. How many. Raises `NotFound`."""
        done, before, has_more = 0, "", True
        while has_more:
            step = protocol.object_of(await self._client.send(calls.dismiss_all_call(model, group, before)))
            done, before, has_more = done + int(step["done"]), str(step.get("before", "")), bool(step["has_more"])
        return done
