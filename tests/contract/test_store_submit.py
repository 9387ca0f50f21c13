"""submit: what the store keeps, what an idempotency key promises, and when the queue is full."""

from __future__ import annotations

import pytest

from penstock.broker.records import SubmitStatus
from penstock.job import JobState, Payload, Priority
from tests.contract.model_queue import ModelQueue


def test_a_submitted_job_is_queued_and_can_be_read(queue: ModelQueue) -> None:
    new = queue.new(owner="alice", input=Payload("image/png", b"\x89PNG"), deadline_s=60.0)
    assert queue.put(new).status is SubmitStatus.CREATED
    job = queue.read(new.id)
    assert (job.state, job.version, job.priority, job.owner) == (JobState.QUEUED, "1", Priority.INTERACTIVE, "alice")
    assert job.content_type == "image/png"
    assert job.deadline_at - job.created_at == pytest.approx(60.0)
    assert (job.attempts, job.crashes, job.started_at, job.finished_at, job.error) == (0, 0, None, None, None)


def test_the_answer_names_the_depth_after_the_call(queue: ModelQueue) -> None:
    answers = queue.store.submit([queue.new(), queue.new(), queue.new()])
    assert [answer.depth for answer in answers] == [3, 3, 3]
    assert queue.put(queue.new()).depth == 4


def test_an_input_in_a_blob_is_named_not_held(queue: ModelQueue) -> None:
    queue.submit(input=Payload("image/png", blob="blobs/abc"))
    assert queue.take().input == Payload("image/png", b"", "blobs/abc")


def test_the_same_key_and_body_give_the_first_job(queue: ModelQueue) -> None:
    first = queue.new(idempotency_key="k", fingerprint="f")
    second = queue.new(idempotency_key="k", fingerprint="f")
    answers = queue.store.submit([first, second])
    assert [(a.status, a.id) for a in answers] == [(SubmitStatus.CREATED, first.id), (SubmitStatus.EXISTING, first.id)]
    assert queue.store.read(second.id) is None
    assert queue.store.stats(queue.name).accepted == 1


def test_the_same_key_with_another_body_is_refused_and_stores_nothing(queue: ModelQueue) -> None:
    first = queue.submit(idempotency_key="k", fingerprint="f")
    other = queue.new(idempotency_key="k", fingerprint="g")
    answer = queue.put(other)
    assert (answer.status, answer.id) == (SubmitStatus.KEY_REUSED, first)
    assert queue.store.read(other.id) is None


def test_keys_of_two_owners_do_not_meet(queue: ModelQueue) -> None:
    queue.submit(idempotency_key="k", fingerprint="f", owner="alice")
    assert queue.put(queue.new(idempotency_key="k", fingerprint="g", owner="bob")).status is SubmitStatus.CREATED


def test_keys_of_two_models_do_not_meet(queue: ModelQueue, model: str) -> None:
    queue.submit(idempotency_key="k", fingerprint="f")
    other = queue.new(id=queue.new_id()._replace(model=f"{model}x"), idempotency_key="k", fingerprint="g")
    assert queue.put(other).status is SubmitStatus.CREATED


def test_an_owner_and_key_are_not_confused_with_another_pair(queue: ModelQueue) -> None:
    queue.submit(idempotency_key="b:c", fingerprint="f", owner="a")
    assert queue.put(queue.new(idempotency_key="c", fingerprint="f", owner="a:b")).status is SubmitStatus.CREATED


def test_jobs_without_a_key_are_never_the_same(queue: ModelQueue) -> None:
    assert queue.submit() != queue.submit()
    assert queue.store.stats(queue.name).accepted == 2


def test_a_key_outlives_the_end_and_the_collection_of_its_job(queue: ModelQueue) -> None:
    first = queue.leased(idempotency_key="k", fingerprint="f", result_ttl_s=0.0)
    queue.finish(first)
    assert queue.put(queue.new(idempotency_key="k", fingerprint="f")).id == first.id
    assert queue.store.sweep(queue.name).collected == 1
    answer = queue.put(queue.new(idempotency_key="k", fingerprint="f"))
    assert (answer.status, answer.id) == (SubmitStatus.EXISTING, first.id)


def test_a_submit_repeated_after_a_lost_reply_finds_its_own_job(queue: ModelQueue) -> None:
    new = queue.new()
    queue.put(new)
    answer = queue.put(new)
    assert (answer.status, answer.id, answer.depth) == (SubmitStatus.EXISTING, new.id, 1)


def test_a_repeated_submit_does_not_queue_a_running_job_again(queue: ModelQueue) -> None:
    new = queue.new()
    queue.put(new)
    queue.take()
    assert queue.put(new).status is SubmitStatus.EXISTING
    assert queue.state(new.id) is JobState.LEASED


def test_a_full_queue_refuses_per_job_and_stores_nothing(queue: ModelQueue) -> None:
    jobs = [queue.new() for _ in range(4)]
    answers = queue.store.submit(jobs, max_depth=3)
    assert [answer.status for answer in answers] == [SubmitStatus.CREATED] * 3 + [SubmitStatus.FULL]
    assert queue.store.read(jobs[3].id) is None


def test_a_full_queue_still_answers_a_repeat(queue: ModelQueue) -> None:
    first = queue.submit(idempotency_key="k", fingerprint="f")
    answer = queue.put(queue.new(idempotency_key="k", fingerprint="f"), max_depth=1)
    assert (answer.status, answer.id) == (SubmitStatus.EXISTING, first)


def test_suspects_count_towards_a_full_queue(queue: ModelQueue) -> None:
    queue.crash(queue.leased())
    assert queue.put(queue.new(), max_depth=1).status is SubmitStatus.FULL


def test_running_and_delayed_jobs_leave_room_in_the_queue(queue: ModelQueue) -> None:
    queue.retry(queue.leased(), delay_s=60.0)
    queue.leased()
    assert queue.put(queue.new(), max_depth=1).status is SubmitStatus.CREATED


def test_many_jobs_go_in_with_one_call(queue: ModelQueue) -> None:
    answers = queue.store.submit([queue.new() for _ in range(500)])
    assert {answer.status for answer in answers} == {SubmitStatus.CREATED}
    assert queue.store.stats(queue.name).depth == 500
