"""`penstock jobs list|show|cancel`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from penstock.cli.connect import JsonOption, KeyOption, UrlOption, connected
from penstock.cli.display import age, duration, print_fields, print_json, print_table, total_seconds
from penstock.cli.timelines import print_timeline
from penstock.client.views import JobView

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List, show and cancel jobs.")

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]


@app.command("list")
def list_jobs(
    model: Annotated[str | None, typer.Option(help="Only jobs of this model.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Only jobs that are queued, running, succeeded, failed, cancelled or expired.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 20,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """The newest jobs. `--json` prints one job per line."""
    with connected(url, api_key) as client:
        found = [handle.view for handle in islice(client.jobs(model=model, status=status, limit=min(limit, 100)), limit)]
    if as_json:
        for job in found:
            print_json(dict(job.body))
    elif found:
        print_table(("JOB", "MODEL", "STATUS", "PRIORITY", "AGE", "TOOK"), [_row(job) for job in found])
    else:
        typer.echo("no jobs", err=True)


@app.command()
def show(job_id: JobArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """One job: its state, its times, why it failed, and where its time went."""
    with connected(url, api_key) as client:
        handle = client.job(job_id)
        job, told = handle.view, handle.timeline()
    if as_json:
        return print_json({**job.body, "timeline": dict(told.body)})
    print_fields(_fields(job))
    return print_timeline(told)


@app.command()
def cancel(job_id: JobArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Cancel a job: at once if it waits; if it runs, its output is dropped when its batch ends."""
    with connected(url, api_key) as client:
        job = client.job(job_id).cancel()
    if as_json:
        return print_json(dict(job.body))
    return typer.echo(f"{job.id} {'cancelled' if job.status == 'cancelled' else f'{job.status}, cancel requested'}")


def _row(job: JobView) -> tuple[str, ...]:
    took_s = total_seconds(job)
    took = duration(took_s) if took_s is not None else "-"
    return (job.id, job.model, job.status, job.priority or "-", age(job.created_at), took)


def _fields(job: JobView) -> dict[str, object]:
    moments = ("created_at", "started_at", "finished_at", "deadline_at")
    return {
        "job": job.id,
        "status": job.status,
        "model": f"{job.model} (version {job.version})" if job.version else job.model,
        "priority": job.priority,
        "position": job.position,
        "attempts": job.attempts,
        **{name: job.body.get(name) for name in moments},
        "trace": job.body.get("trace_id"),
        "error": f"{job.error.message} ({job.error.code})" if job.error else None,
    }
