"""What items report on its way to the supervisor: in order, the latest progress, and never more than a bound in memory."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

from penstock.workers.child.reports import ReportSender
from penstock.workers.ipc.frames import FromChild, GiveUp, ItemReports
from tests.eventually import eventually


def start_thread(work: Callable[[], None]) -> None:
    Thread(target=work, daemon=True).start()


class Supervisor:
    """Takes frames only while it is open."""

    def __init__(self) -> None:
        self.open = Event()
        self.frames: list[ItemReports] = []

    def write(self, frame: FromChild) -> None:
        self.open.wait()
        assert isinstance(frame, ItemReports)
        self.frames.append(frame)

    def chunks(self, place: int) -> list[bytes]:
        reports = [report for frame in self.frames for report in frame.reports if report.place == place]
        return [chunk for report in reports for chunk in report.chunks]


def test_a_generator_waits_while_the_supervisor_is_behind_and_loses_nothing() -> None:
    supervisor = Supervisor()
    sender, said = ReportSender(supervisor.write, start_thread=start_thread), list[int]()

    def generate() -> None:
        for number in range(400):
            sender.chunk(1, 0, b"%03d" % number + b"x" * 1_000)
            said.append(number)

    generator = Thread(target=generate, daemon=True)
    generator.start()
    # One frame is with the supervisor; behind it the pending chunks reach their bound.
    eventually(lambda: sender.is_full)
    assert len(said) < 140
    assert generator.is_alive()
    supervisor.open.set()
    generator.join(30.0)
    sender.end(1)
    assert [int(chunk[:3]) for chunk in supervisor.chunks(0)] == list(range(400))


def test_the_latest_progress_is_sent_before_the_end_of_the_batch() -> None:
    supervisor = Supervisor()
    supervisor.open.set()
    sender = ReportSender(supervisor.write, start_thread=start_thread)
    for step in range(1_000):
        sender.progress(1, 3, step / 1_000, f"step {step}")
    sender.end(1)
    last = supervisor.frames[-1].reports[-1]
    assert (last.place, last.note) == (3, "step 999")
    assert len(supervisor.frames) < 1_000


def test_of_a_stream_that_begins_anew_nothing_old_is_sent_afterwards() -> None:
    supervisor = Supervisor()
    sender = ReportSender(supervisor.write, start_thread=lambda _: None)
    sender.restart(1, 0)
    sender.chunk(1, 0, b"1")
    sender.restart(1, 0)
    sender.chunk(1, 0, b"2")
    supervisor.open.set()
    sender.end(1)
    [report] = supervisor.frames[0].reports
    assert (report.restarts, report.chunks) == (1, [b"2"])


def test_where_batches_overlap_the_end_of_one_forgets_no_other() -> None:
    supervisor = Supervisor()
    supervisor.open.set()
    sender = ReportSender(supervisor.write, start_thread=lambda _: None)
    for batch in (1, 2, 3):
        sender.give_up(GiveUp(batch, [0], late=True))
        sender.progress(batch, 0, 0.5, "")
        assert sender.is_unwanted(batch, 0)
    assert sender.end(3, oldest=1) == {0}
    assert [sender.is_unwanted(batch, 0) for batch in (1, 2, 3)] == [True, True, False]
    assert [sender.progressed_at(batch, 0) > 0 for batch in (1, 2, 3)] == [True, True, False]
    # What came for a batch that had ended goes with the next one.
    sender.give_up(GiveUp(3, [0]))
    assert sender.end(1, oldest=2) == {0}
    assert sender.end(2, oldest=4) == {0}
    assert not sender.is_unwanted(3, 0)


def test_a_batch_that_waited_says_that_it_begins() -> None:
    supervisor = Supervisor()
    supervisor.open.set()
    sender = ReportSender(supervisor.write, start_thread=lambda _: None)
    sender.begin(7)
    sender.end(7)
    assert supervisor.frames == [ItemReports(7, [])]


def test_only_those_who_heard_that_they_are_late_have_stopped() -> None:
    sender = ReportSender(Supervisor().write, start_thread=start_thread)
    sender.give_up(GiveUp(1, [0]))
    sender.give_up(GiveUp(1, [1, 2], late=True))
    assert [sender.is_unwanted(1, place) for place in (0, 1, 3)] == [True, True, False]
    assert sender.end(1) == {1}
    assert not sender.is_unwanted(1, 0)
