"""Many jobs under one command: watched to their ends and shown as groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from penstock.cli.display import print_json, print_table, total_seconds
from penstock.cli.exits import FAILED
from penstock.client.display import progress_bar
from penstock.client.views import JobView
from penstock.words import duration

if TYPE_CHECKING:
    from penstock.client.handles.job_handle import JobHandle
    from penstock.client.sync import Client

# The most jobs of one call: their ids are held in memory, and the models' queues are bounded anyway.
MOST_TIMES = 10_000


def show_ids(handles: Iterable[JobHandle], *, as_json: bool) -> None:
    """One id per line; with `as_json` the jobs."""
    for handle in handles:
        print_json(dict(handle.view.body)) if as_json else typer.echo(handle.id)


def watch(client: Client, handles: list[JobHandle], *, as_json: bool) -> None:
    """Wait until all have ended, then print one line per group; with `as_json` one job per line, as it ends.

    Raises `typer.Exit` with the code for a failed job if one did not succeed.
    """
    ended: list[JobView] = []
    with progress_bar("jobs", shown=not as_json) as on_step:
        for handle in client.as_completed(handles):
            ended.append(handle.view)
            on_step(len(ended), len(handles), "")
            if as_json:
                print_json(dict(handle.view.body))
    if not as_json:
        print_table(("JOBS", "STATUS", "ATTEMPTS", "SLOWEST", "FOR EXAMPLE"), groups(ended))
    if any(job.status != "succeeded" for job in ended):
        raise typer.Exit(FAILED)


def groups(jobs: Iterable[JobView]) -> list[tuple[str, ...]]:
    """A row per status and number of attempts: the number of jobs, and the slowest of them. Failures come last."""
    alike: dict[tuple[bool, str, int], list[JobView]] = {}
    for job in jobs:
        alike.setdefault((job.status != "succeeded", job.status, job.attempts), []).append(job)
    return [_row(status, attempts, alike[_, status, attempts]) for _, status, attempts in sorted(alike)]


def _row(status: str, attempts: int, jobs: list[JobView]) -> tuple[str, ...]:
    slowest = max(jobs, key=lambda job: total_seconds(job) or 0.0)
    return (str(len(jobs)), status, str(attempts), duration(total_seconds(slowest) or 0.0), slowest.id)
