"""The webhooks of the caller's jobs and runs: their secrets, delivery logs, and undelivered events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from penstock.client import calls, protocol

if TYPE_CHECKING:
    from penstock.client.aio import AsyncClient


class AsyncWebhooks:
    """`ids` may be of jobs and of runs. docs/reference/webhooks.md describes the logs."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def secrets(self) -> list[str]:
        """The secrets that verify events, the newest first: two while the operator rotates the signing key.

        Raises `NotFound` if webhooks are off.
        """
        return [str(key) for key in protocol.object_of(await self._client.send(calls.webhook_secret_call()))["keys"]]

    async def log(self, job_or_run: str) -> dict[str, Any]:
        """The last event of a job or run and the attempts to deliver it. Raises `NotFound` if it has no webhook."""
        return protocol.object_of(await self._client.send(calls.event_log_call(job_or_run)))

    async def undelivered(self) -> AsyncIterator[dict[str, Any]]:
        """The logs of undelivered events, newest first, fetched in pages during the iteration."""
        after: str | None = ""
        while after is not None:
            answer = await self._client.send(calls.undelivered_call(after))
            for row in protocol.rows_of(answer):
                yield row
            after = protocol.object_of(answer).get("next_after")

    async def replay(self, ids: Iterable[str]) -> int:
        """Send the last events of these once more, if they were delivered or given up; returns how many."""
        parts = [protocol.object_of(await self._client.send(call)) for call in calls.event_calls("replay", ids)]
        return sum(int(part["replayed"]) for part in parts)

    async def dismiss(self, ids: Iterable[str]) -> int:
        """Take undelivered events off the list; returns how many."""
        parts = [protocol.object_of(await self._client.send(call)) for call in calls.event_calls("dismiss", ids)]
        return sum(int(part["dismissed"]) for part in parts)
