# Generated from client/handles/webhooks_aio.py by `make sync-client`. Change that file, not this one.
"""The webhooks of the caller's jobs and runs: their secrets, delivery logs, and undelivered events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.client import calls, protocol

if TYPE_CHECKING:
    from penstock.client.sync import Client


class Webhooks:
    """`ids` may be of jobs and of runs. docs/reference/webhooks.md describes the logs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def secrets(self) -> list[str]:
        """The secrets that verify events, the newest first: two while the operator rotates the signing key.

        Raises `NotFound` if webhooks are off.
        """
        return [str(key) for key in protocol.object_of(self._client.send(calls.webhook_secret_call()))["keys"]]

    def log(self, job_or_run: str) -> dict[str, Any]:
        """The last event of a job or run and the attempts to deliver it. Raises `NotFound` if it has no webhook."""
        return protocol.object_of(self._client.send(calls.event_log_call(job_or_run)))

    def undelivered(self) -> Iterator[dict[str, Any]]:
        """The logs of undelivered events, newest first, fetched in pages during the iteration."""
        after: str | None = ""
        while after is not None:
            answer = self._client.send(calls.undelivered_call(after))
            yield from protocol.rows_of(answer)
            after = protocol.object_of(answer).get("next_after")

    def replay(self, ids: Iterable[str]) -> int:
        """Send the last events of these once more, if they were delivered or given up; returns how many."""
        parts = [protocol.object_of(self._client.send(call)) for call in calls.event_calls("replay", ids)]
        return sum(int(part["replayed"]) for part in parts)

    def dismiss(self, ids: Iterable[str]) -> int:
        """Take undelivered events off the list; returns how many."""
        parts = [protocol.object_of(self._client.send(call)) for call in calls.event_calls("dismiss", ids)]
        return sum(int(part["dismissed"]) for part in parts)
