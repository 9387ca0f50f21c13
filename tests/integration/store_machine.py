"""A random walk over a real Redis store and, step by step, over its oracle: both must give the same answers and hold the
same data.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import count
from typing import Any

import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from penstock.broker.contract import JobIndex, ReleaseReason
from penstock.broker.records import (
    ClaimedJob,
    ClaimRequest,
    Ending,
    GiveBack,
    NewJob,
    Report,
    Reported,
    Settled,
    SubmitStatus,
    Unfinished,
)
from penstock.broker.store.sync import RedisStore
from penstock.broker.store.wake_ups import handed_over
from penstock.extensions.webhooks.webhook import Webhook
from penstock.job import Call, JobId, JobState, Payload, Priority, new_job_id
from tests.contract.dumps import Dump, RedisDump, dump_oracle
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import OUTPUT, STAMP, JobStore
from tests.integration.timeless import timeless
from tests.oracle.store import StoreOracle

# A time is over at once or long after the test: anything between would make the outcome depend on how fast the machine is.
now_or_never = st.sampled_from([0.0, 1_000.0])
workers = st.sampled_from(["w1", "w2"])
OWNERS = ["", "", "a", "b", "c"]


class StoreMachine(RuleBasedStateMachine):
    """`connect` opens the Redis store under test; a mutant of its functions may stand behind that store."""

    jobs = Bundle("jobs")
    leases = Bundle("leases")

    def __init__(self, url: str, connect: Callable[[], RedisStore] | None = None) -> None:
        super().__init__()
        self.model = f"m{uuid.uuid4().hex[:12]}"
        self.connect = connect or (lambda: RedisStore(url))
        self.store = self.connect()
        self.oracle = StoreOracle()
        self.client = redis.Redis.from_url(url)
        self.views: dict[str, tuple[JobState, Any]] = {}
        self.nonces = (f"nonce{n}" for n in count())
        self.offers: dict[str, ClaimRequest] = {}
        self.listen()

    def listen(self) -> None:
        """Be slot w1, which hears what is handed to it. A subscription ends with the server that has it."""
        self.slots = self.client.pubsub(ignore_subscribe_messages=True)
        self.slots.ssubscribe(f"ps:{{{self.model}}}:worker:w1")
        # The subscription is confirmed before anything is published; the confirmation itself is no message.
        assert self.slots.get_message(timeout=5.0) is None

    def teardown(self) -> None:
        self.slots.close()
        keys = [
            *self.client.scan_iter(f"ps:{{{self.model}}}:*", count=1000),
            *self.client.scan_iter(f"penstock.{{{self.model}}}*"),
        ]
        if keys:
            self.client.delete(*keys)
        self.store.close()
        self.client.close()

    def both(self, ask: Callable[[JobStore], Any]) -> Any:
        """Ask the store and its oracle, and return the answer that both give."""
        answer = ask(self.store)
        self.compare(answer, ask)
        return answer

    def compare(self, answer: Any, ask: Callable[[JobStore], Any]) -> None:
        """Compare an answer of the store with that of the oracle."""
        expected = ask(self.oracle)
        assert timeless(answer) == timeless(expected), f"Redis: {answer}\noracle: {expected}"

    def compare_dump(self, dump: Dump) -> None:
        assert dump == dump_oracle(self.oracle, self.model)

    def webhook_of(self, job: JobId) -> Webhook | None:
        """Return who hears of a new job's events: nobody, because the oracle knows no events."""
        return None

    def dump(self) -> Dump:
        return RedisDump(self.client, self.model).dump()

    def token(self, job: JobId) -> str:
        """Return the token that the store holds for a leased job right now, or '' if nobody holds the job."""
        stored = self.dump().jobs.get(job.serial)
        return stored.token if stored and stored.state is JobState.LEASED else ""

    @initialize(target=jobs)
    def first(self) -> Any:
        return self.submit("", "f", Priority.INTERACTIVE, 1_000.0, 1_000.0, 10, "", Call.PREDICT, 0.0, "")

    @rule(
        target=jobs,
        key=st.sampled_from(["", "", "a", "b"]),
        body=st.sampled_from("fg"),
        priority=st.sampled_from(Priority),
        deadline_s=st.sampled_from([1_000.0, 2_000.0, 3_000.0, 0.0]),
        ttl_s=now_or_never,
        max_depth=st.sampled_from([10, 10, 3]),
        owner=st.sampled_from(OWNERS),
        call=st.sampled_from([Call.PREDICT, Call.PREDICT, Call.SHARD]),
        delay_s=st.sampled_from([0.0, 0.0, 1_000.0]),
        tags=st.sampled_from(["", "x", "xy"]),
    )
    def submit(
        self,
        key: str,
        body: str,
        priority: Priority,
        deadline_s: float,
        ttl_s: float,
        max_depth: int,
        owner: str,
        call: Call,
        delay_s: float,
        tags: str,
    ) -> JobId:
        job = new_job_id(self.model)
        new = NewJob(
            id=job,
            version="1",
            input=Payload("application/json", body.encode()),
            priority=priority,
            deadline_s=deadline_s,
            result_ttl_s=ttl_s,
            idempotency_key=key,
            fingerprint=body,
            owner=owner,
            call=call,
            delay_s=delay_s,
            tags=tuple(tags),
            words=hook.word_of(owner) if (hook := self.webhook_of(job)) else {},
        )
        [answer] = self.both(lambda store: store.submit([new], max_depth=max_depth))
        self.follow_hand_over()
        return JobId(*answer.id)

    def follow_hand_over(self) -> None:
        """A submit that serves the offer of a slot is the submit and that slot's claim in one: the oracle makes the claim."""
        self.client.execute_command("SPUBLISH", f"ps:{{{self.model}}}:worker:w1", "end")
        texts = iter(lambda: self.slots.get_message(timeout=5.0)["data"], b"end")
        for text in filter(lambda text: text[:1] == b"h", texts):
            nonce, claim = handed_over(text[1:], self.model)
            self.compare(claim, lambda store, ask=self.offers[nonce]: store.claim(ask))  # type: ignore[misc]

    @rule(
        target=leases,
        worker=workers,
        limit=st.sampled_from([4, 2]),
        enough=st.sampled_from([1, 1, 3]),
        max_wait_s=now_or_never,
        min_slack_s=st.sampled_from([0.0, 1_500.0, 2_500.0]),
        lease_s=now_or_never,
    )
    def claim(self, worker: str, limit: int, enough: int, max_wait_s: float, min_slack_s: float, lease_s: float) -> Any:
        ask = ClaimRequest(
            queue=self.model,
            version="1",
            worker=worker,
            nonce=next(self.nonces),
            limit=limit,
            enough=enough,
            max_wait_s=max_wait_s,
            min_slack_s=min_slack_s,
            lease_s=lease_s,
        )
        claim = self.both(lambda store: store.claim(ask))
        assert claim.reason == "solo" or all(job.call is not Call.SHARD for job in claim.jobs)
        return multiple(*((worker, job) for job in claim.jobs))

    @rule(limit=st.sampled_from([1, 2]), min_slack_s=st.sampled_from([0.0, 1_500.0]), lease_s=now_or_never)
    def offer(self, limit: int, min_slack_s: float, lease_s: float) -> None:
        """Slot w1, which listens, asks and would take what comes next; slot w2 never does."""
        nonce = next(self.nonces)
        ask = ClaimRequest(
            self.model, "1", "w1", nonce, limit=limit, min_slack_s=min_slack_s, lease_s=lease_s, max_wait_s=0.0, offer=True
        )
        self.offers[nonce] = ask
        self.both(lambda store: store.claim(ask))

    @rule(target=leases, worker=workers, lease_s=now_or_never)
    def claim_shard(self, worker: str, lease_s: float) -> Any:
        nonce = next(self.nonces)
        ask = ClaimRequest(queue=self.model, version="1", worker=worker, nonce=nonce, limit=4, lease_s=lease_s, shard=True)
        claim = self.both(lambda store: store.claim(ask))
        assert len(claim.jobs) <= 1
        assert all(job.call is Call.SHARD for job in claim.jobs)
        return multiple(*((worker, job) for job in claim.jobs))

    @rule(worker=workers, lease_s=now_or_never, max_run_s=now_or_never)
    def extend(self, worker: str, lease_s: float, max_run_s: float) -> None:
        self.both(lambda store: store.extend(self.model, worker, lease_s=lease_s, max_run_s=max_run_s))

    @rule(lease=leases, lease_s=now_or_never, max_run_s=st.sampled_from([0.0, 1_000.0]))
    def get_on(self, lease: tuple[str, ClaimedJob], lease_s: float, max_run_s: float) -> None:
        worker, job = lease
        progressed = [job.id]
        self.both(lambda store: store.extend(self.model, worker, lease_s=lease_s, max_run_s=max_run_s, progressed=progressed))

    @rule(lease=leases, state=st.sampled_from([JobState.SUCCEEDED, JobState.FAILED]))
    def finish(self, lease: tuple[str, ClaimedJob], state: JobState) -> None:
        worker, job = lease
        code = "" if state is JobState.SUCCEEDED else "bad_input"
        ending = Ending(job.id, job.token, state, output=None if code else OUTPUT, error_code=code, error_message=code)
        self.settle(job, lambda store: store.finish([ending], worker=worker, stamp=STAMP)[0])

    @rule(lease=leases, chunks=st.sampled_from([0, 1, 2]), before=st.sampled_from([0, 1]), restarts=st.sampled_from([0, 0, 1]))
    def report(self, lease: tuple[str, ClaimedJob], chunks: int, before: int, restarts: int) -> None:
        _, job = lease
        current = self.token(job.id)
        said = tuple(f'"{job.token} {before + n}"'.encode() for n in range(chunks))
        report = Report(job.id, job.token, chunks / 2, f"{chunks}, no more", restarts, before, said)
        [answer] = self.both(lambda store: store.report([report]))
        if answer is Reported.STALE and current == job.token:
            assert before > 0, "only a stream with a gap ends the attempt"
            assert self.token(job.id) != job.token
        else:
            assert (answer is Reported.STALE) == (current != job.token)

    @rule(lease=leases, delay_s=now_or_never)
    def retry(self, lease: tuple[str, ClaimedJob], delay_s: float) -> None:
        worker, job = lease
        items = [GiveBack(job.id, job.token)]
        self.settle(job, lambda store: store.retry(items, worker=worker, delay_s=delay_s, code="oops", message="again")[0])

    @rule(lease=leases, reason=st.sampled_from(sorted(set(ReleaseReason) - {ReleaseReason.READING})))
    def release(self, lease: tuple[str, ClaimedJob], reason: ReleaseReason) -> None:
        worker, job = lease
        self.settle(job, lambda store: store.release([GiveBack(job.id, job.token)], worker=worker, reason=reason)[0])

    @rule(lease=consumes(leases))
    def forget(self, lease: tuple[str, ClaimedJob]) -> None:
        """A worker dies, or the reply to its claim is lost."""

    def settle(self, job: ClaimedJob, ask: Callable[[JobStore], Settled]) -> None:
        """Settle, then settle once more, as after a lost reply. The store accepts only the holder of the current token."""
        current = self.token(job.id)
        answer = self.both(ask)
        heard = answer in (Settled.OK, Settled.CANCELLED, Settled.DEAD)
        assert heard == (current == job.token), f"{answer} for token {job.token}, the store had {current or 'none'}"
        ended = self.dump().jobs.get(job.id.serial)
        if heard and ended and ended.state.final:
            assert ended.final_token == job.token
        repeated = self.both(ask)
        assert repeated in ((Settled.ALREADY,) if ended and ended.final_token == job.token else (Settled.STALE,))

    @rule(job=jobs, owner=st.sampled_from(OWNERS))
    def cancel(self, job: JobId, owner: str) -> None:
        self.both(lambda store: store.cancel(job, owner=owner))

    @rule(job=jobs)
    def read(self, job: JobId) -> None:
        self.both(lambda store: store.result(job))
        self.both(lambda store: store.collected_owner(job))
        self.both(lambda store: store.follow(job, mark="1.0", seen=1))

    @rule(job=jobs)
    def forget_job(self, job: JobId) -> None:
        self.both(lambda store: store.forget([job]))

    @rule(job=jobs)
    def dismiss(self, job: JobId) -> None:
        self.both(lambda store: store.dismiss([job]))

    @rule(gone=st.sampled_from([[], ["w1"], ["w2"], ["w1", "w2"]]))
    def sweep(self, gone: list[str]) -> None:
        self.both(lambda store: store.sweep(self.model, gone=gone))

    @rule(version=st.sampled_from(["1", ""]))
    def retire(self, version: str) -> None:
        """Close the queue if nothing keeps it open, ask it for a job, and open it again, so that the walk goes on."""
        left = self.both(lambda store: store.retire(self.model, version))
        new = NewJob(new_job_id(self.model), "1", OUTPUT, deadline_s=1_000.0)
        [answer] = self.both(lambda store: store.submit([new]))
        assert (answer.status is SubmitStatus.RETIRED) == (left == Unfinished(0, 0))
        self.follow_hand_over()
        self.both(lambda store: store.reopen(self.model, version, store.retired(self.model).get(version, -1)))

    @rule()
    def reconcile(self) -> None:
        repair = self.both(lambda store: store.reconcile(self.model))
        assert (repair.orphans, repair.tickets) == (0, 0)

    @rule()
    def count_all(self) -> None:
        self.both(lambda store: store.stats(self.model))
        self.both(lambda store: store.records(store.newest(self.model)))
        self.both(lambda store: store.newest(self.model, JobIndex.INBOX, owner="a"))
        self.both(lambda store: store.newest(self.model, JobIndex.TAGGED, tag="x"))
        self.both(lambda store: store.newest(self.model, JobIndex.TAGGED, owner="a", tag="y"))

    @invariant()
    def sound(self) -> None:
        dump = self.dump()
        check_invariants(dump)
        self.compare_dump(dump)
        self.keep_views(dump)

    def keep_views(self, dump: Dump) -> None:
        """I2, I8: the view of a final job stays the same until the job is collected."""
        for serial in self.views.keys() & dump.jobs.keys():
            assert dump.jobs[serial].state.final, f"{serial} was {self.views[serial][0]} and is {dump.jobs[serial].state}"
        final = [serial for serial, job in dump.jobs.items() if job.state.final]
        for serial, found in zip(final, self.store.results([JobId(serial, self.model) for serial in final]), strict=True):
            assert found is not None
            state = dump.jobs[serial].state
            assert self.views.setdefault(serial, (state, found)) == (state, found)


def walk(make: Callable[[], StoreMachine], how: settings) -> None:
    """Run random histories on machines made by `make`; raise the first failure, with the steps that led to it."""
    run_state_machine_as_test(make, settings=how)  # type: ignore[arg-type]  # typed for classes, takes any factory
