from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.cli.ops.status import GatewayStatus, lines_of

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


def queue(model: str, **others: Any) -> dict[str, Any]:
    idle = {"depth": 0, "oldest_age_s": 0.0, "backlog_s": 0.0, "in_flight": 0, "delayed": 0, "ready_slots": 1}
    return {"model": model, **idle, "wanted_slots": 1, "paused": False, "unloaded": False, **others}


def shown(*queues: dict[str, Any], **others: Any) -> dict[str, str]:
    found: dict[str, Any] = {"why": "", "workers": [], "failed": [], "runs": [], **others}
    return lines_of(GatewayStatus("http://gateway", queues=queues, **found), now=NOW)


def test_there_are_ten_lines_and_none_is_empty() -> None:
    for lines in (shown(), shown(queue("square"), workers=None)):
        assert len(lines) == 10
        assert [name for name, line in lines.items() if not line] == []


def test_what_waits_is_counted_by_model_the_longest_queue_first() -> None:
    square, text = (
        queue("square", depth=3, oldest_age_s=4.0, backlog_s=2.0),
        queue("text", depth=5, oldest_age_s=1.0, backlog_s=9.0),
    )
    assert shown(square, text)["waiting"] == "8 jobs: text 5, square 3; the oldest for 4.0 s, 9.0 s until empty"


def test_how_long_a_queue_takes_is_left_out_while_no_rate_is_known() -> None:
    assert (
        shown(queue("square", depth=3, oldest_age_s=4.0, backlog_s=None))["waiting"] == "3 jobs: square 3; the oldest for 4.0 s"
    )


def test_slots_that_lack_are_named_with_their_faults_and_those_of_paused_models_do_not_lack() -> None:
    worker = {"host": "a", "slots": [{"error": "no such file"}, {"error": "no such file"}]}
    lines = shown(queue("square"), queue("ocr", ready_slots=0), queue("old", ready_slots=0, paused=True), workers=[worker])
    assert lines["slots"] == "1 of 2 ready: ocr 0 of 1, no such file"
    assert lines["models"] == "3: square, ocr, old (paused)"


def test_failed_jobs_are_counted_by_model_and_code() -> None:
    jobs = [
        {"model": "square", "error": {"code": code}, "finished_at": "2026-11-24T11:58:00Z"} for code in ("oom", "bad", "oom")
    ]
    assert (
        shown(failed=jobs)["failed"] == "3 jobs: square oom 2, square bad 1; the newest 2 min ago (penstock jobs list --failed)"
    )
    assert shown(failed=jobs * 400)["failed"].startswith("1,200 jobs or more: square oom 800")


def test_a_key_that_may_not_manage_is_told_so() -> None:
    assert shown(queue("square"), workers=None)["workers"] == "takes a key with the role manage"


def test_runs_that_go_on_are_named_with_their_share() -> None:
    run = {"id": "r1", "model": "square", "status": "running", "progress": {"rows": 200, "done": 40, "failed": 10}}
    assert shown(runs=[run])["runs"] == "1 goes on: r1 square running 25 %"


def test_a_store_that_cannot_be_written_to_is_told() -> None:
    assert shown()["store"] == "takes writes"
    assert shown(why="square: no worker")["store"] == "takes writes"
    assert shown(why="store: unreachable; square: no worker")["store"] == "unreachable"
