"""The queue of a simulation answers claims as the store does, for which its oracle stands here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.records import BatchStamp, Claim, ClaimRequest, Ending, NewJob
from penstock.job import JobId, JobState, Payload
from penstock.tune.simulation.queue import SimulatedQueue
from tests.oracle.store import StoreOracle

MODEL, NOTHING = "simulated", Payload("application/json")
ASK = ClaimRequest(MODEL, "1", "", "n", limit=4, lease_s=1e9)
seconds = st.sampled_from([0.0, 0.001, 0.005, 0.02, 0.1])
# Equal deadlines make a line by arrival, others one by urgency.
arrivals = st.tuples(st.just("arrive"), st.sampled_from([0.004, 0.02, 0.05, 0.05, 1e6]))
requests = st.builds(
    replace,
    st.just(ASK),
    worker=st.sampled_from(["w1", "w2", "w3"]),
    limit=st.sampled_from([1, 2, 4]),
    enough=st.sampled_from([1, 2, 4]),
    max_wait_s=st.sampled_from([0.0, 0.005, 1e9]),
    min_slack_s=seconds,
    slack_per_item_s=st.sampled_from([0.0, 0.001, 0.01]),
    hurry_s=seconds,
)
steps = st.one_of(
    arrivals,
    arrivals,
    arrivals,
    st.tuples(st.just("claim"), requests),
    st.tuples(st.just("claim"), requests),
    st.tuples(st.just("finish"), st.none()),
    st.tuples(st.just("sweep"), st.none()),
    st.tuples(st.just("pass"), seconds),
)


def seen(claim: Claim) -> tuple[Any, ...]:
    """Return what a simulation reads of an answer."""
    jobs = [(job.id, job.created_at, job.deadline_at) for job in claim.jobs]
    return jobs, claim.reason, claim.depth, claim.retry_in_s, claim.now


class BothQueues:
    """The queue and the oracle, at one virtual time."""

    def __init__(self) -> None:
        self.now = 1.0
        self.made = 0
        self.queue = SimulatedQueue(MODEL)
        self.oracle = StoreOracle(lambda: self.now)
        self.running: list[tuple[str, Claim]] = []

    def arrive(self, deadline_s: float) -> None:
        serial = f"{self.made:026}"
        self.made += 1
        self.queue.submit(serial, deadline_s, self.now)
        [answer] = self.oracle.submit([NewJob(JobId(serial, MODEL), "1", NOTHING, deadline_s=deadline_s)])
        assert self.queue.depth == answer.depth

    def claim(self, request: ClaimRequest) -> None:
        answer, expected = self.queue.claim(request, self.now), self.oracle.claim(request)
        assert seen(answer) == seen(expected)
        if expected.jobs:
            self.running.append((request.worker, expected))

    def finish(self, _: None) -> None:
        if self.running:
            worker, claim = self.running.pop(0)
            self.queue.finish(len(claim.jobs))
            endings = [Ending(job.id, job.token, JobState.SUCCEEDED) for job in claim.jobs]
            self.oracle.finish(endings, worker=worker, stamp=BatchStamp())

    def sweep(self, _: None) -> None:
        self.queue.sweep(self.now)
        self.oracle.sweep(MODEL)
        assert self.queue.depth == self.oracle.queue(MODEL).depth

    def let_pass(self, seconds: float) -> None:
        self.now += seconds


@settings(max_examples=300)
@given(st.lists(steps, min_size=20, max_size=80))
def test_any_history_of_claims_is_answered_as_the_store_answers_it(history: list[tuple[str, Any]]) -> None:
    both = BothQueues()
    acts: dict[str, Callable[[Any], None]] = {
        "arrive": both.arrive,
        "claim": both.claim,
        "finish": both.finish,
        "sweep": both.sweep,
        "pass": both.let_pass,
    }
    for act, argument in history:
        acts[act](argument)


def test_a_job_with_less_slack_than_its_batch_needs_fills_the_places_that_others_leave() -> None:
    queue = SimulatedQueue(MODEL)
    for serial, deadline_s in (("urgent", 0.01), ("calm", 9.0), ("later", 9.5)):
        queue.submit(serial, deadline_s, 0.0)
    two = replace(ASK, limit=2, min_slack_s=0.02)
    assert [job.id.serial for job in queue.claim(two, 0.001).jobs] == ["calm", "later"]
    assert [job.id.serial for job in queue.claim(two, 0.001).jobs] == ["urgent"]
