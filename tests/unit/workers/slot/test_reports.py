"""What items of a batch say becomes one report per job, and no more than the store can bear."""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.records import ClaimedJob, Report
from penstock.job import Payload, Priority, new_job_id
from penstock.workers.ipc.frames import ItemReport, ItemReports
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.reports import Reports, Said


def batch(size: int) -> Batch:
    jobs = (ClaimedJob(new_job_id("m"), f"{n}:w:n", Payload(""), Priority.BULK, 0.0, 1e12, 1, 0) for n in range(size))
    return Batch(tuple(jobs), "full", "w", "n", claimed_at=0.0)


def said(reports: Reports, now: float) -> tuple[Report, ...]:
    [one] = reports.take(now)
    return one.reports


def test_the_latest_progress_of_each_job_is_reported_under_its_token() -> None:
    reports, some = Reports(), batch(3)
    reports.note(some, ItemReports(1, [ItemReport(0, 0.1, "a"), ItemReport(2, 0.1, "c")]))
    reports.note(some, ItemReports(1, [ItemReport(2, 0.2, "d")]))
    first, _, last = some.jobs
    assert reports.take(5.0) == [Said((Report(first.id, "0:w:n", 0.1, "a"), Report(last.id, "2:w:n", 0.2, "d")))]
    assert not reports.pending


def test_the_store_is_left_alone_for_a_moment_after_each_report() -> None:
    reports, some = Reports(), batch(1)
    assert reports.due_at == float("-inf")
    reports.note(some, ItemReports(1, [ItemReport(0, 0.1)]))
    reports.take(5.0)
    assert 5.0 < reports.due_at < 5.1


def chunks(reports: Reports, some: Batch, *data: bytes, restarts: int = 0) -> None:
    reports.note(some, ItemReports(1, [ItemReport(0, restarts=restarts, chunks=list(data))]))


def test_chunks_are_numbered_over_reports_until_the_stream_begins_anew() -> None:
    reports, some = Reports(), batch(1)
    chunks(reports, some, b"1", b"2")
    chunks(reports, some, b"3")
    [first] = said(reports, 0.0)
    chunks(reports, some, b"4")
    [second] = said(reports, 0.1)
    chunks(reports, some, b"5")
    chunks(reports, some, b"6", restarts=1)
    [third] = said(reports, 0.2)
    assert [(one.restarts, one.before, one.chunks) for one in (first, second, third)] == [
        (0, 0, (b"1", b"2", b"3")),
        (0, 3, (b"4",)),
        (1, 0, (b"6",)),
    ]
    reports.forget(some)
    assert not reports.said


def test_at_its_end_the_store_is_asked_whether_it_has_all_of_a_stream() -> None:
    reports, some = Reports(), batch(2)
    chunks(reports, some, b"1", b"2")
    reports.note(some, ItemReports(1, [ItemReport(1, 0.5)]))
    reports.take(0.0)
    reports.close(some)
    first, _ = some.jobs
    assert reports.take(0.1) == [Said((Report(first.id, first.token, before=2),))]


def test_the_child_is_not_listened_to_while_a_mebibyte_waits_for_the_store() -> None:
    reports, some = Reports(), batch(1)
    chunks(reports, some, b"x" * (1 << 20))
    assert reports.is_full
    reports.take(0.0)
    assert not reports.is_full


def test_a_job_that_comes_back_while_its_lost_attempt_still_speaks_has_a_stream_of_its_own() -> None:
    reports, lost = Reports(), batch(1)
    again = replace(lost, jobs=(replace(lost.jobs[0], token="1:w:n"),))
    chunks(reports, lost, b"1", b"2")
    reports.take(0.0)
    chunks(reports, again, b"1")
    chunks(reports, lost, b"3")
    assert [(one.token, one.before, one.chunks) for one in said(reports, 0.1)] == [
        ("1:w:n", 0, (b"1",)),
        ("0:w:n", 2, (b"3",)),
    ]
    reports.forget(lost)
    reports.forget(again)
    assert not reports.said


def test_reports_go_to_the_queues_of_their_jobs() -> None:
    reports, at_home = Reports(), batch(2)
    elsewhere = replace(at_home, jobs=(replace(at_home.jobs[0], id=new_job_id("m", 2)),))
    for some in (at_home, elsewhere):
        chunks(reports, some, b"1")
    assert [(one.queue, len(one.reports)) for one in reports.take(0.0)] == [("m", 1), ("m:2", 1)]
