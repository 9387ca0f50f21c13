"""Random histories over three partitions on a real server: slots that claim, steal and are killed, repeats, cancels, and
another number of partitions, of which some gateways have not heard. Every job ends once, a key has one job, and the invariants
hold in each queue.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from selectors import DefaultSelector
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from penstock.broker.backlog import Backlog
from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.contract import ReleaseReason
from penstock.broker.partitions import numbers_of_key, queues_of_model
from penstock.broker.records import Ending, NewJob, SubmitStatus
from penstock.broker.store.ops import advance, first_job
from penstock.broker.store.sync import RedisStore
from penstock.broker.store.wake_ups import WakeUps
from penstock.job import JobId, JobState, Payload, queue_of
from penstock.model_spec import BatchPolicy, ModelInfo, ModelSpec
from penstock.workers.fleet.announce import announced, claimed_from
from penstock.workers.slot.batch import Batch, release
from penstock.workers.slot.child.in_flight import InFlight
from penstock.workers.slot.claims import Claims
from penstock.workers.slot.context import Observers, SlotContext
from penstock.workers.slot.latency import Latency
from penstock.workers.slot.needless import NeedlessBlobs
from tests.contract.dumps import RedisDump
from tests.contract.invariants import check_invariants

MOST = 3
KEYS = [f"k{number}" for number in range(12)]
OUTPUT = Payload("application/json", b"1")


class WalkingSlot:
    """The claims of a slot on the real store. Its child takes four batches; what it holds ends when the walk says so."""

    def __init__(self, url: str, folder: Path, model: str, name: str) -> None:
        self.held: list[Batch] = []
        self.name = name
        context = SlotContext(
            lambda: RedisStore(url),
            lambda queue, incarnation: WakeUps(url, queue, incarnation).open(),
            LocalBlobs(folder),
            NeedlessBlobs(LocalBlobs(folder), RedisStore(url), replicas=None),
            Observers(),
            lease_s=600.0,
            inline_output_bytes=1_024,
        )
        child: Any = SimpleNamespace(is_taking=True, is_taking_shards=False, in_flight=InFlight())
        child.in_flight.awaited = lambda: self.held
        spec = ModelSpec(model, "m.py", policy=BatchPolicy(max_batch_size=4))
        latency = Latency()
        for size in (1, 2, 4):
            latency.observe(size, 0.001)
        self.child, self.claims = child, Claims(spec, context, DefaultSelector(), latency, child, name=name, device="cpu")

    def turn(self, info: ModelInfo) -> None:
        self.claims.feeds.wanted = claimed_from(queues_of_model(info), self.name)
        self.claims.feeds.follow_wanted()
        self.child.is_taking = len(self.held) < 4
        for feed in self.claims.feeds.all:
            self.claims.read_messages(feed, since=0.0)
            # Without waiting for a second to pass.
            feed.view.on_wake_up()
        self._take()
        self.claims.settle_and_claim(is_draining=False)
        self._take()

    def _take(self) -> None:
        self.held += self.claims.waiting
        self.claims.waiting.clear()

    def end(self, batch: Batch) -> None:
        self.held.remove(batch)
        endings = tuple(Ending(job.id, job.token, JobState.SUCCEEDED, OUTPUT) for job in batch.jobs)
        self.claims.debts.owe(replace(batch, endings=endings))

    def give_back(self, batch: Batch) -> None:
        self.held.remove(batch)
        self.claims.debts.owe(release(batch, ReleaseReason.DRAIN))

    def names(self) -> list[str]:
        return [feed.lease.name for feed in self.claims.feeds.all]


class Walk:
    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.url, self.folder, self.chance = url, folder, random.Random(seed)
        self.model = f"m{uuid.uuid4().hex[:12]}"
        self.store, self.client = RedisStore(url), redis.Redis.from_url(url)
        self.info = ModelInfo(self.model)
        self.looked: list[NewJob] = []
        self.jobs: list[JobId] = []
        self.keys: dict[str, JobId] = {}
        self.claimed = Counter[str]()
        self.slots = [WalkingSlot(url, folder, self.model, f"here.{number}") for number in range(2)]
        self.born = len(self.slots)

    def step(self) -> None:
        moves = (
            [self.submit] * 6
            + [self.turn] * 6
            + [self.end] * 4
            + [self.cancel, self.resize, self.resize, self.give_back, self.kill]
        )
        self.chance.choice(moves)()

    def submit(self) -> None:
        """A gateway looks for the key's first job, and submits, at once or only after other steps."""
        key = self.chance.choice(["", "", *KEYS[:4], *KEYS])
        self.looked.append(self.placed(key))
        while len(self.looked) > 3:
            self.send(self.looked.pop(self.chance.randrange(len(self.looked))))

    def send(self, job: NewJob) -> None:
        [answer] = self.store.submit([job])
        if answer.status is SubmitStatus.MOVED:
            [answer] = self.store.submit([self.placed(job.idempotency_key)])
        assert answer.status in (SubmitStatus.CREATED, SubmitStatus.EXISTING)
        if answer.status is SubmitStatus.CREATED:
            self.jobs.append(answer.id)
        assert self.keys.setdefault(job.idempotency_key, answer.id) == answer.id or not job.idempotency_key

    def placed(self, key: str) -> NewJob:
        id = Backlog().new_job_id(self.info, owner="", key=key)
        job = NewJob(id, "1", OUTPUT, idempotency_key=key, fingerprint=key, placing=self.info.placing)
        if key:
            queues = [queue_of(self.model, place) for place in numbers_of_key(self.info, "", key)]
            found = [first for queue in queues if (first := self.store.send(first_job(queue, "", key)))]
            assert len(found) <= 1, "I9 over partitions"
            job = replace(job, id=job.id._replace(partition=found[0].partition)) if found else job
        return job

    def turn(self) -> None:
        self.chance.choice(self.slots).turn(self.info)

    def end(self) -> None:
        slot = self.chance.choice(self.slots)
        if slot.held:
            batch = self.chance.choice(slot.held)
            self.claimed[batch.queue] += 1
            slot.end(batch)

    def give_back(self) -> None:
        slot = self.chance.choice(self.slots)
        if slot.held:
            slot.give_back(self.chance.choice(slot.held))

    def cancel(self) -> None:
        if self.jobs:
            self.store.cancel(self.chance.choice(self.jobs))

    def resize(self) -> None:
        count = self.chance.randint(1, MOST)
        self.info = announced(replace(self.info, partitions=count), self.info)
        self.store.run_all([advance(queue, self.info.placing) for queue in queues_of_model(self.info)])

    def kill(self) -> None:
        """A slot is gone with all that it held and owed; another one comes."""
        slot = self.chance.choice(self.slots)
        self.slots.remove(slot)
        names = slot.names()
        slot.claims.close()
        for queue in queues_of_model(self.info):
            self.store.sweep(queue, gone=names)
        self.slots.append(WalkingSlot(self.url, self.folder, self.model, f"here.{self.born}"))
        self.born += 1

    def check(self) -> None:
        for queue in queues_of_model(self.info):
            check_invariants(RedisDump(self.client, queue).dump())

    def finish(self) -> None:
        while self.looked:
            self.send(self.looked.pop())
        self.end_all()

    def end_all(self) -> None:
        """Let everything end: whatever partition it lies in, also one that gets no new jobs."""
        for _ in range(200):
            for slot in self.slots:
                slot.turn(self.info)
                for batch in list(slot.held):
                    self.claimed[batch.queue] += 1
                    slot.end(batch)
            if all(job is not None and job.state.final for job in map(self.store.read, self.jobs)):
                return
        pytest.fail(f"jobs were left: {[self.store.stats(queue) for queue in queues_of_model(self.info)]}")

    def close(self) -> None:
        for slot in self.slots:
            slot.claims.close()
        for queue in queues_of_model(self.info):
            RedisDump(self.client, queue).delete()
        with suppress(redis.RedisError):
            self.client.close()
        self.store.close()


@pytest.mark.parametrize("seed", range(4))
def test_any_history_over_partitions_ends_every_job_once(redis_url: str, tmp_path: Path, seed: int) -> None:
    random.seed(seed)
    walk = Walk(redis_url, tmp_path, seed)
    try:
        for number in range(2_500):
            # A history in which the last partition was seldom open goes on until it has run a job.
            if number >= 250 and len(walk.claimed) == MOST:
                break
            walk.step()
            if number % 25 == 0:
                walk.check()
        walk.finish()
        walk.check()
        stats = [walk.store.stats(queue) for queue in queues_of_model(walk.info)]
        assert sum(one.accepted for one in stats) == len(walk.jobs) == sum(sum(one.ended.values()) for one in stats)
        assert len(walk.claimed) == MOST, "jobs of every partition ran"
    finally:
        walk.close()
