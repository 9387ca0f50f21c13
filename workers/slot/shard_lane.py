"""When a slot asks for a shard, and which shards make progress. Pure: moments are monotonic and passed in."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.records import Claim, ClaimRequest
from penstock.job_id import JobId
from penstock.model_spec import ModelSpec

# One shard runs and one waits in the child, so that the device need not wait for a claim.
SHARDS_AHEAD = 2
# A request for a shard that brought none is repeated after this: other slots were faster, or the next shard is not free yet.
_VAIN_PAUSE_S = 0.05
_NEVER = float("inf")


class ShardLane:
    """The slot's view of the shards that wait in line. Every claim, of either lane, says how many there are."""

    def __init__(self) -> None:
        self._in_line = 0
        self._ask_at = float("-inf")

    def note(self, claim: Claim) -> None:
        """The answer to a request of the ordinary lane."""
        self._in_line = claim.shards

    def on_claim(self, claim: Claim, now: float) -> None:
        """The answer to a `shard_request`."""
        self._in_line = claim.shards
        self._ask_at = float("-inf") if claim.jobs else now + _VAIN_PAUSE_S

    def ask_at(self, *, in_child: int, peers: int) -> float:
        """When to ask, or infinity to wait for the next answer. `peers`: how many other slots serve the model."""
        # The child gets a second shard only if there is a first one for every other slot.
        enough = 1 if in_child == 0 else peers + 1
        return self._ask_at if in_child < SHARDS_AHEAD and self._in_line >= enough else _NEVER


def shard_request(spec: ModelSpec, worker: str, *, nonce: str, lease_s: float) -> ClaimRequest:
    return ClaimRequest(spec.name, spec.version, worker, nonce, limit=1, lease_s=lease_s, shard=True)


class LaneProgress:
    """How far the shards in the child are. The slot's thread replaces `_rows`, the beat's thread `_reported`."""

    def __init__(self) -> None:
        self._rows: Mapping[JobId, int] = {}
        self._reported: Mapping[JobId, int] = {}

    def note(self, rows: Mapping[JobId, int]) -> None:
        """Rows done of each shard in the child."""
        self._rows = rows

    def moved(self) -> tuple[JobId, ...]:
        """All shards in the child if any has advanced since the last call: those behind it are on their way too."""
        rows, before = self._rows, self._reported
        self._reported = rows
        return tuple(rows) if any(done != before.get(id) for id, done in rows.items()) else ()
