"""A slot's record of a batch, and what its child has to do."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.records import BatchStamp, ClaimedJob, Ending
from penstock.job import Call
from penstock.workers.ipc.frames import Item

SOLO = "solo"
BULK = "bulk"
_NO_STAMP = BatchStamp()


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs leased to one slot, from their claim to their settlement: the slot's one record of them.

    Fields below `device` are filled in on the way. `items`: the inputs, one per job. `fresh`: `device` was idle when the child
    got the batch. `profile_dir`: the folder in which the child records this batch's inference. `endings`: how the jobs ended,
    one per job. Moments are monotonic, except `leased_at`: the moment of the claim once more, as Unix time by Redis' clock.
    """

    jobs: tuple[ClaimedJob, ...]
    reason: str
    worker: str
    nonce: str
    claimed_at: float
    leased_at: float = 0.0
    device: str = ""
    items: tuple[Item, ...] = ()
    given_at: float = 0.0
    fresh: bool = False
    profile_dir: str = ""
    endings: tuple[Ending, ...] = ()
    stamp: BatchStamp = _NO_STAMP

    @property
    def size(self) -> int:
        return len(self.jobs)

    @property
    def is_solo(self) -> bool:
        return self.reason == SOLO

    @property
    def is_shard(self) -> bool:
        """Whether its one job holds the rows of a shard."""
        return self.jobs[0].call is Call.SHARD

    def accepted_at(self, job: ClaimedJob) -> float:
        """When the job was accepted, on this machine's monotonic clock."""
        # The claim is known on both clocks, so that a machine whose wall clock is wrong still measures right.
        return job.created_at + self.claimed_at - self.leased_at


@dataclass(frozen=True, slots=True)
class ChildLoad:
    """What the child has to do: how many batches, and the size and start of the one at the device.

    `alone`: no other batch may join. `shards` are counted apart from `batches`: they delay no batch.
    """

    batches: int = 0
    size: int = 0
    since: float = 0.0
    alone: bool = False
    shards: int = 0


IDLE = ChildLoad()
