# Generated from client/handles/operators_aio.py by `make sync-client`. Change that file, not this one.
"""What operators do to models and workers that serve, and the log of it. Every call needs a key with the role manage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client import calls, protocol

if TYPE_CHECKING:
    from penstock.client.sync import Client


class Operators:
    """`client.operators`: each call is safe to repeat, and is written into the audit log of the gateway."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def pause(self, model: str) -> dict[str, Any]:
        """The model. Its jobs are accepted and wait until `resume`; what runs already ends. Raises `NotFound`."""
        return protocol.object_of(self._client.send(calls.act_call("models", model, "pause")))

    def resume(self, model: str) -> dict[str, Any]:
        """The model, whose jobs run again."""
        return protocol.object_of(self._client.send(calls.act_call("models", model, "resume")))

    def limit(self, model: str, **limits: float | None) -> dict[str, Any]:
        """The model, with these limits for the jobs that come from now on, such as `max_queue_depth=500`; None: as in settings.

        Raises `InvalidInput`, which names the limits that can be changed.
        """
        return protocol.object_of(self._client.send(calls.limits_call(model, limits)))

    def purge(self, model: str) -> int:
        """Cancel all jobs of the model that wait, in steps of up to 500. How many were cancelled."""
        cancelled, has_more = 0, True
        while has_more:
            step = protocol.object_of(self._client.send(calls.act_call("models", model, "purge")))
            cancelled, has_more = cancelled + int(step["cancelled"]), bool(step["has_more"])
        return cancelled

    def drain(self, worker: str) -> dict[str, Any]:
        """Have a worker end what it holds and take nothing more, until `resume_worker`. Raises `NotFound`."""
        return protocol.object_of(self._client.send(calls.act_call("workers", worker, "drain")))

    def resume_worker(self, worker: str) -> dict[str, Any]:
        return protocol.object_of(self._client.send(calls.act_call("workers", worker, "resume")))

    def audit(self, *, before: int | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest acts of operators before the one with this number, newest first, at most 200."""
        return protocol.rows_of(self._client.send(calls.audit_call(before, limit)))
