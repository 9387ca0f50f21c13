from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest

from penstock.cli.display import age, is_colored, print_table, timing_line
from penstock.client.views import BatchView, JobView

START = datetime(2026, 11, 20, tzinfo=UTC)


def job(**more: object) -> JobView:
    return JobView(id="x-square", status="succeeded", **more)  # type: ignore[arg-type]


def test_the_line_of_timings_tells_queue_batch_run_and_total() -> None:
    seen = job(
        created_at=START,
        started_at=START + timedelta(milliseconds=1),
        finished_at=START + timedelta(milliseconds=4),
        batch=BatchView(size=3, reason="full", preprocess_s=0.0001, inference_s=0.0002),
    )
    assert timing_line(seen, max_batch_size=8) == "queued 1.0 ms | batch 3/8 (full) | ran 0.3 ms | total 4.0 ms"


def test_what_the_record_does_not_know_is_left_out() -> None:
    assert timing_line(job(created_at=START)) == ""
    assert timing_line(job(attempts=2)) == "2 attempts"


def test_age_counts_from_the_moment_given() -> None:
    assert age(START, now=START + timedelta(seconds=3)) == "3.0 s"
    assert age(None) == "-"


def test_columns_are_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("JOB", "STATUS"), [("x" * 200, "queued"), ("y", "failed")])
    header, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("x" * 200)
    assert header.index("STATUS") == first.index("queued") == second.index("failed")


@pytest.mark.parametrize(("no_color", "expected"), [("1", False), ("", True)])
def test_a_terminal_is_coloured_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch, no_color: str, expected: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("NO_COLOR", no_color)
    assert is_colored(Terminal()) is expected
