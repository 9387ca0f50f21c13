"""Tags: a caller finds its jobs by the words that it gave them, for as long as they are stored."""

from __future__ import annotations

from penstock.broker.contract import JobIndex
from penstock.broker.records import SubmitStatus
from penstock.job import JobId
from tests.contract.model_queue import ModelQueue


def tagged(queue: ModelQueue, tag: str, *, owner: str = "", before: str = "", limit: int = 100) -> list[JobId]:
    return queue.store.newest(queue.name, JobIndex.TAGGED, owner=owner, before=before, limit=limit, tag=tag)


def test_a_job_has_the_tags_that_it_was_given(queue: ModelQueue) -> None:
    assert queue.read(queue.submit(tags=("nightly", "team=a:b"))).tags == ("nightly", "team=a:b")
    assert queue.read(queue.submit()).tags == ()


def test_a_tag_finds_its_own_jobs_and_no_others(queue: ModelQueue) -> None:
    first, both = queue.submit(tags=("run",)), queue.submit(tags=("run", "run-2"))
    longer = queue.submit(tags=("run-2",))
    queue.submit()
    assert tagged(queue, "run") == [both, first]
    assert tagged(queue, "run-2") == [longer, both]
    assert tagged(queue, "ru") == tagged(queue, "other") == []


def test_the_jobs_of_a_tag_are_found_page_by_page(queue: ModelQueue) -> None:
    jobs = [queue.submit(tags=("x",)) for _ in range(5)]
    first = tagged(queue, "x", limit=2)
    second = tagged(queue, "x", limit=2, before=first[-1].serial)
    assert [*first, *second] == jobs[:0:-1]


def test_an_owner_finds_its_own_jobs(queue: ModelQueue) -> None:
    own, other, nobodys = (queue.submit(owner=owner, tags=("x",)) for owner in ("a", "b", ""))
    assert tagged(queue, "x", owner="a") == [own]
    assert tagged(queue, "x", owner="b") == [other]
    assert tagged(queue, "x") == [nobodys, other, own]


def test_an_owner_whose_name_holds_a_tag_finds_no_others(queue: ModelQueue) -> None:
    queue.submit(owner="a", tags=("b:x",))
    assert tagged(queue, "x", owner="a:b") == []


def test_a_job_keeps_its_tags_until_it_is_collected(queue: ModelQueue) -> None:
    job = queue.leased(tags=("x",))
    assert tagged(queue, "x") == [job.id]
    queue.finish(job)
    assert tagged(queue, "x") == [job.id]


def test_the_tags_of_a_collected_job_are_gone(queue: ModelQueue) -> None:
    for owner in ("", "a"):
        queue.finish(queue.leased(result_ttl_s=0.0, owner=owner, tags=("x", "y")))
    stays = queue.submit(owner="a", tags=("x",))
    assert queue.store.sweep(queue.name).collected == 2
    assert tagged(queue, "x") == tagged(queue, "x", owner="a") == [stays]
    assert tagged(queue, "y") == tagged(queue, "y", owner="a") == []
    assert queue.dump().mislisted == set()


def test_a_forgotten_job_leaves_no_tag(queue: ModelQueue) -> None:
    job = queue.leased(tags=("x",))
    queue.finish(job)
    assert queue.store.forget([job.id]) == 1
    assert tagged(queue, "x") == []


def test_a_job_that_waits_for_its_start_is_found_by_its_tag(queue: ModelQueue) -> None:
    job = queue.submit(tags=("x",), delay_s=60.0)
    assert tagged(queue, "x") == [job]


def test_a_job_that_is_refused_leaves_no_tag(queue: ModelQueue) -> None:
    queue.submit()
    assert queue.put(queue.new(tags=("x",)), max_depth=1).status is SubmitStatus.FULL
    assert tagged(queue, "x") == []


def test_many_jobs_with_many_tags_go_in_with_one_call(queue: ModelQueue) -> None:
    tags = tuple(f"tag-{number}" for number in range(8))
    answers = queue.store.submit([queue.new(owner="a", tags=tags) for _ in range(600)])
    assert {answer.status for answer in answers} == {SubmitStatus.CREATED}
    assert len(tagged(queue, "tag-7", owner="a", limit=1_000)) == 600
