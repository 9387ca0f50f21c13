"""When a slot asks for a shard, and how its beat knows that one makes progress. Pure; moments are monotonic and passed in."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.records import Claim, ClaimRequest
from penstock.job_id import JobId
from penstock.model_spec import ModelSpec

# One runs, one waits in the child, so that the device need not wait for a claim.
SHARDS_AHEAD = 2
# Others were faster, or what stands in line is not to be had yet.
_VAIN_PAUSE_S = 0.05
_NEVER = float("inf")


class ShardLane:
    """Beside the ordinary lane, which comes first. Every claim tells what stands in line."""

    def __init__(self) -> None:
        self._in_line = 0
        self._ask_at = float("-inf")

    def told(self, claim: Claim) -> None:
        self._in_line = claim.shards

    def answered(self, claim: Claim, now: float) -> None:
        """The answer to the `request`."""
        self._in_line = claim.shards
        self._ask_at = float("-inf") if claim.jobs else now + _VAIN_PAUSE_S

    def ask_at(self, *, held: int, peers: int) -> float:
        """When to ask; infinity as long as nothing changes. `held` are in the child, `peers` other slots serve the model."""
        # A second one only when there is a first for every other slot.
        enough = 1 if held == 0 else peers + 1
        return self._ask_at if held < SHARDS_AHEAD and self._in_line >= enough else _NEVER


def shard_request(spec: ModelSpec, worker: str, *, nonce: str, lease_s: float) -> ClaimRequest:
    return ClaimRequest(spec.name, spec.version, worker, nonce, limit=1, lease_s=lease_s, shard=True)


class LaneProgress:
    """Written by the slot's thread, read by the beat's: each replaces what it owns, and changes nothing in place."""

    def __init__(self) -> None:
        self._rows: Mapping[JobId, int] = {}
        self._told: Mapping[JobId, int] = {}

    def saw(self, rows: Mapping[JobId, int]) -> None:
        """Rows done of each shard in the child."""
        self._rows = rows

    def moved(self) -> tuple[JobId, ...]:
        """The shards that are on their way since the last call: those that advanced, and those behind them in the child."""
        rows, before = self._rows, self._told
        self._told = rows
        return tuple(rows) if any(done != before.get(id) for id, done in rows.items()) else ()
