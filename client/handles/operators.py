# Generated from client/handles/operators_aio.py by `make sync-client`. Change that file, not this one.
"""Operators' calls for models, workers and the failed inbox, and their audit log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from penstock.client import calls, protocol

if TYPE_CHECKING:
    from penstock.client.sync import Client


class Operators:
    """`client.operators`: each call is safe to repeat, needs a key with the role manage, and is in the gateway's audit log."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def pause(self, model: str) -> dict[str, Any]:
        """Pause and return the model. Its jobs are accepted and wait until `resume`; running jobs end. Raises `NotFound`."""
        return protocol.object_of(self._client.send(calls.act_call("models", model, "pause")))

    def resume(self, model: str) -> dict[str, Any]:
        """Resume and return the model."""
        return protocol.object_of(self._client.send(calls.act_call("models", model, "resume")))

    def limit(self, model: str, **limits: float | None) -> dict[str, Any]:
        """Set limits for future jobs, such as `max_queue_depth=500`; None: as in the settings. Returns the model.

        Raises `InvalidInput`, which names the limits that can be changed.
        """
        return protocol.object_of(self._client.send(calls.limits_call(model, limits)))

    def purge(self, model: str) -> int:
        """Cancel all waiting jobs of the model, in steps of up to 500; returns how many were cancelled."""
        cancelled, has_more = 0, True
        while has_more:
            step = protocol.object_of(self._client.send(calls.act_call("models", model, "purge")))
            cancelled, has_more = cancelled + int(step["cancelled"]), bool(step["has_more"])
        return cancelled

    def drain(self, worker: str) -> dict[str, Any]:
        """Have a worker finish its jobs and take no more until `resume_worker`. Raises `NotFound`."""
        return protocol.object_of(self._client.send(calls.act_call("workers", worker, "drain")))

    def resume_worker(self, worker: str) -> dict[str, Any]:
        return protocol.object_of(self._client.send(calls.act_call("workers", worker, "resume")))

    def audit(self, *, before: int | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The acts of operators before the one with this number, newest first, at most 200."""
        return protocol.rows_of(self._client.send(calls.audit_call(before, limit)))


class FailedInbox:
    """`client.failed`: jobs without an output, until they are replayed or dismissed. The role manage sees all owners' jobs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def jobs(
        self, model: str | None = None, *, group: str | None = None, fault: Literal["caller", "model"] | None = None
    ) -> Iterator[dict[str, Any]]:
        """The jobs as in `GET /v1/failed`, newest first, read during the iteration. Raises `NotFound`.

        `group`: only jobs with this `group`, which share a fault. `fault`: only faults of this side.
        """
        after, has_more = "", True
        while has_more:
            has_more = False
            for line in self._client.streamed(calls.failed_call(model, after)):
                job: dict[str, Any] = json.loads(line)
                after, has_more = str(job["id"]), True
                if group in (None, job["group"]) and fault in (None, job["fault"]):
                    yield job

    def dismiss(self, jobs: Iterable[str]) -> int:
        """Take these jobs off the inbox without changing them; returns how many were in it. Raises `NotFound`."""
        parts = [protocol.object_of(self._client.send(call)) for call in calls.dismiss_calls(jobs)]
        return sum(int(part["done"]) for part in parts)

    def dismiss_all(self, model: str, *, group: str = "") -> int:
        """Take all jobs of the model, or of a group, off the inbox, in steps; returns how many. Raises `NotFound`."""
        done, before, has_more = 0, "", True
        while has_more:
            step = protocol.object_of(self._client.send(calls.dismiss_all_call(model, group, before)))
            done, before, has_more = done + int(step["done"]), str(step.get("before", "")), bool(step["has_more"])
        return done
