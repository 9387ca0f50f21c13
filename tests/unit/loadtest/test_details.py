from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from penstock.gateway.jobs.predict import server_timing
from penstock.job import BatchRecord
from penstock.loadtest.details import DetailRecorder
from penstock.loadtest.generator.answers import AnswerReader
from penstock.loadtest.generator.connection import Connection
from penstock.loadtest.workload import CallStyle


@dataclass
class Answered:
    """The part of a connection that a recorder uses."""

    head: str
    body: str = ""
    sent_at: float = 10.0
    reader: AnswerReader = field(default_factory=AnswerReader)

    def connection(self) -> Connection:
        assert self.reader.feed(f"HTTP/1.1 {self.head}\r\nContent-Length: {len(self.body)}\r\n\r\n{self.body}".encode())
        return cast("Connection", self)


def recorder(caller: CallStyle = CallStyle.SYNC, *, sample: int = 5) -> DetailRecorder:
    return DetailRecorder(caller, (b"GET /", b" HTTP/1.1\r\n\r\n"), sample=sample, seed=1, since=5.0)


def test_what_the_gateway_says_of_an_answers_batch_is_read() -> None:
    """The header comes from the gateway's own code, so that this test notices a change there."""
    said = server_timing(BatchRecord("b", 3, "full", 0.001, 0.002, 0.003), 0.010).decode()
    found = recorder()
    found.answer(Answered(f"200 OK\r\nServer-Timing: {said}\r\nX-Penstock-Job: 1-Square").connection(), 11.0)
    assert found.run_s.tolist() == pytest.approx([0.006])
    assert found.queue_s.tolist() == pytest.approx([0.004])
    assert (found.sizes.tolist(), found.reasons, found.jobs) == ([3], ["full"], ["1-Square"])


def test_the_warm_up_leaves_no_trace_but_in_the_counts() -> None:
    found = recorder()
    found.answer(Answered("200 OK\r\nX-Penstock-Job: 1-m", sent_at=4.0).connection(), 11.0)
    assert (found.good, found.jobs) == (1, [])


def test_a_submit_is_followed_until_its_result_and_its_job_counts_once() -> None:
    found = recorder(CallStyle.ASYNC)
    body = '{"id":"1-m","status":"queued"}'
    assert found.follow(Answered("202 Accepted\r\nLocation: /v1/jobs/1-m", body).connection()) == b"GET /1-m HTTP/1.1\r\n\r\n"
    assert found.follow(Answered("202 Accepted", body).connection()) == b"GET /1-m HTTP/1.1\r\n\r\n"
    assert found.follow(Answered("200 OK", "{}").connection()) is None
    assert found.jobs == ["1-m"]


def test_a_submit_alone_ends_with_its_202() -> None:
    found = recorder(CallStyle.SUBMIT)
    answered = Answered("202 Accepted\r\nLocation: /v1/jobs/1-m", '{"id":"1-m"}').connection()
    assert found.follow(answered) is None
    found.answer(answered, 11.0)
    assert found.jobs == ["1-m"]


def test_the_sampled_jobs_are_from_all_of_the_run() -> None:
    found = recorder(sample=20)
    for number in range(1_000):
        found.answer(Answered(f"200 OK\r\nX-Penstock-Job: {number}-m").connection(), 11.0)
    numbers = [int(job.partition("-")[0]) for job in found.jobs]
    assert len(set(numbers)) == 20
    assert min(numbers) < 250 < 750 < max(numbers)
