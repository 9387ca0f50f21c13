from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from penstock.cli.jobs.call import need_json_alone
from penstock.cli.jobs.many import groups, watch
from penstock.client.views import JobView, job_view


def job(name: str, status: str = "succeeded", *, attempts: int = 1, seconds: int = 1) -> JobView:
    return job_view(
        {
            "id": name,
            "model": "mood",
            "status": status,
            "attempts": attempts,
            "created_at": "2026-11-23T22:40:00Z",
            "finished_at": f"2026-11-23T22:40:{seconds:02}Z",
        }
    )


def test_jobs_are_counted_by_status_and_attempts_with_the_slowest_of_each_and_what_failed_comes_last() -> None:
    jobs = [job("a", seconds=2), job("b", "failed"), job("c", attempts=2, seconds=9), job("d", seconds=4), job("e", seconds=3)]
    assert groups(jobs) == [
        ("3", "succeeded", "1", "4.0 s", "d"),
        ("1", "succeeded", "2", "9.0 s", "c"),
        ("1", "failed", "1", "1.0 s", "b"),
    ]


@pytest.mark.parametrize(("value", "media_type", "others"), [(b"x", "text/plain", False), ("x", None, True)])
def test_many_jobs_of_one_command_take_json_and_show_no_outputs(value: Any, media_type: str | None, others: bool) -> None:
    need_json_alone("x", None, others=False)
    with pytest.raises(typer.BadParameter, match="--times"):
        need_json_alone(value, media_type, others=others)


class EndedJobs:
    """A client whose jobs have all ended."""

    def as_completed(self, handles: list[Any]) -> Iterator[Any]:
        yield from handles


@pytest.mark.parametrize(("statuses", "code"), [(("succeeded", "failed"), 1), (("succeeded",), None)])
def test_the_exit_code_says_whether_one_of_the_jobs_failed(statuses: tuple[str, ...], code: int | None) -> None:
    handles: list[Any] = [SimpleNamespace(view=job(status, status)) for status in statuses]
    client: Any = EndedJobs()
    with pytest.raises(typer.Exit) if code else nullcontext() as ended:
        watch(client, handles, as_json=False)
    assert code == (ended.value.exit_code if ended else None)
