"""The queue of one simulated model: waiting jobs, and the jobs that a claim takes. It follows the store's rules for interactive
jobs of one version without owners (`broker/functions/claim.lua`), because a simulation has no others. Pure: the time is passed
in.

`tests/unit/tune/simulation/test_queue.py` compares it with the oracle of the store.
"""

# D40: docs/design/batching.md
from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from penstock.broker.records import Claim, ClaimedJob, ClaimRequest
from penstock.job import JobId, Payload, Priority

_NOTHING = Payload("application/json")
_SHORTEST_WAIT_S = 0.001

# A waiting job, after the keys that order its line.
_Waiting = tuple[float, str, ClaimedJob]


class SimulatedQueue:
    """Jobs wait in two lines, each by deadline and then by serial: a job with less slack than its batch needs steps over to the
    late line, which fills the places of a batch that the first line leaves.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ready: list[_Waiting] = []
        self._late: list[_Waiting] = []
        # Claimed jobs that are not answered.
        self._running = 0

    @property
    def depth(self) -> int:
        """The number of waiting jobs."""
        return len(self._ready) + len(self._late)

    def submit(self, serial: str, deadline_s: float, now: float) -> None:
        id = JobId(serial, self._name)
        job = ClaimedJob(id, "", _NOTHING, Priority.INTERACTIVE, now, now + deadline_s, attempts=1, crashes=0)
        _put(self._ready, job)

    def claim(self, request: ClaimRequest, now: float) -> Claim:
        """The jobs that leave now, or none and when to ask again (`ClaimRequest`)."""
        ready, late = self._choose(request, now)
        chosen = ready + late
        reason = self._reason(chosen, request, now) if chosen else ""
        if not reason:
            return Claim(depth=self.depth, retry_in_s=_retry_in_s(chosen[0], request, now) if chosen else None, now=now)
        del self._ready[: len(ready)]
        del self._late[: len(late)]
        self._running += len(chosen)
        return Claim(tuple(chosen), reason, self.depth, now=now)

    def finish(self, jobs: int) -> None:
        """A slot has answered this many of the jobs that it claimed."""
        self._running -= jobs

    def sweep(self, now: float) -> None:
        """Drop the jobs whose deadline has passed."""
        for line in (self._ready, self._late):
            line[:] = [entry for entry in line if entry[0] > now]

    def _choose(self, request: ClaimRequest, now: float) -> tuple[list[ClaimedJob], list[ClaimedJob]]:
        """The next jobs of each line, together at most `limit`, moved to the front of their lines.

        The batch that is possible may be smaller than a full one, and then its jobs need less slack.
        """
        missing = max(0, request.limit - self.depth)
        ready = self._next_ready(request.limit, request.min_slack_s - missing * request.slack_per_item_s, now)
        return ready, self._next_late(request.limit - len(ready), now)

    def _next_ready(self, limit: int, need_s: float, now: float) -> list[ClaimedJob]:
        """The next ready jobs. On the way, expired jobs leave the line, and those with too little slack step over."""
        kept: list[_Waiting] = []
        looked_at = 0
        for deadline_at, serial, job in self._ready:
            if len(kept) == limit:
                break
            looked_at += 1
            if deadline_at - now >= need_s and deadline_at > now:
                kept.append((deadline_at, serial, job))
            elif deadline_at > now:
                _put(self._late, job)
        self._ready[:looked_at] = kept
        return [job for _, _, job in kept]

    def _next_late(self, limit: int, now: float) -> list[ClaimedJob]:
        if not limit:
            return []
        expired = next((index for index, entry in enumerate(self._late) if entry[0] > now), len(self._late))
        del self._late[:expired]
        return [job for _, _, job in self._late[:limit]]

    def _reason(self, chosen: Sequence[ClaimedJob], request: ClaimRequest, now: float) -> str:
        """Why the batch may leave now; empty if it waits for more jobs."""
        enough = min(request.enough, request.limit)
        if len(chosen) >= request.limit:
            # One job of a queue of one filled no batch: it met an idle slot.
            return "idle" if request.limit == self.depth == 1 else "full"
        if len(chosen) >= enough:
            return "full" if enough > 1 else "idle"
        if not self._running:
            return "idle"
        if _wait_left_s(chosen[0], request, now) <= 0:
            return "wait"
        return "deadline" if _slack_left_s(chosen[0], request, now) <= 0 else ""


def _put(line: list[_Waiting], job: ClaimedJob) -> None:
    insort(line, (job.deadline_at, job.id.serial, job))


def _wait_left_s(first: ClaimedJob, request: ClaimRequest, now: float) -> float:
    return request.max_wait_s - (now - first.created_at)


def _slack_left_s(first: ClaimedJob, request: ClaimRequest, now: float) -> float:
    return first.deadline_at - now - request.hurry_s


def _retry_in_s(first: ClaimedJob, request: ClaimRequest, now: float) -> float:
    return max(_SHORTEST_WAIT_S, min(_wait_left_s(first, request, now), _slack_left_s(first, request, now)))
