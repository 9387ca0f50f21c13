"""`penstock jobs list|show|result|watch|cancel|replay`, and `dismiss` of the failed inbox."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.display import age, delayed_until, print_fields, print_ids, print_json, print_table, total_seconds
from penstock.cli.jobs import many, streams
from penstock.cli.jobs.inbox import FailedBy, GroupOption, dismiss, list_failed
from penstock.cli.jobs.outputs import OutputFileOption, json_members, readable, save, write_raw
from penstock.cli.jobs.timelines import print_timeline
from penstock.cli.options import JsonOption, KeyOption, QuietOption, TimeoutOption, UrlOption, connect, job_ids, model_names
from penstock.client.views import CancelledJobs, JobView
from penstock.errors import Conflict
from penstock.words import duration, plural

if TYPE_CHECKING:
    from penstock.client.handles.job_handle import JobHandle
    from penstock.client.sync import Client

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List, show, cancel and replay jobs; read their outputs.")

app.command()(dismiss)

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=job_ids)]
ModelOption = Annotated[str | None, typer.Option("--model", help="Only jobs of this model.", autocompletion=model_names)]


@app.command("list")
def list_jobs(
    model: ModelOption = None,
    status: Annotated[
        str | None, typer.Option(help="Only jobs that are queued, running, succeeded, failed, cancelled or expired.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only jobs that were submitted with this tag.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 20,
    failed: Annotated[
        bool, typer.Option("--failed", help="The failed inbox: jobs that were neither replayed nor dismissed, by fault.")
    ] = False,
    group: GroupOption = None,
    fault: Annotated[
        FailedBy | None,
        typer.Option("--fault", help="With --failed. caller: inputs that the model cannot take. model: all else."),
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """List the newest jobs, or with --failed all that wait in the failed inbox. `--json` prints one job per line."""
    if (group or fault) and not failed:
        raise typer.BadParameter("--group and --fault are those of --failed")
    if failed and (status or tag):
        raise typer.BadParameter("--failed takes --model, --group and --fault")
    if failed:
        return list_failed(connect(url, api_key), model, group, fault, quiet=quiet, as_json=as_json)
    with connect(url, api_key) as client:
        handles = client.jobs(model=model, status=status, tag=tag, limit=min(limit, 100))
        jobs = [handle.view for handle in islice(handles, limit)]
    if quiet:
        print_ids(job.id for job in jobs)
    elif as_json:
        for job in jobs:
            print_json(dict(job.body))
    elif jobs:
        print_table(("JOB", "MODEL", "STATUS", "PRIORITY", "AGE", "TOOK"), [_row(job) for job in jobs])
    else:
        typer.echo("no jobs", err=True)
    return None


@app.command()
def show(
    job_id: JobArgument,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show what the model's code raised, if the model keeps tracebacks.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show one job: its state, its times, why it failed, and where its time went."""
    with connect(url, api_key) as client:
        handle = client.job(job_id)
        job, timeline = handle.view, handle.timeline()
        raised = client.traceback(job_id) if traceback else None
    if as_json:
        beside = {"timeline": dict(timeline.body)} | ({"traceback": raised} if traceback else {})
        return print_json({**job.body, **beside})
    print_fields(_fields(job))
    print_timeline(timeline)
    if raised is not None:
        typer.echo(f"\n{raised.rstrip()}")
    return None


@app.command()
def result(
    job_id: JobArgument,
    file: OutputFileOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the output: bytes unchanged, text without quotes.")] = False,
    timeout_s: TimeoutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Print the output of a job, or save it; wait until the job has ended."""
    with connect(url, api_key) as client:
        output = client.job(job_id).result(timeout_s)
    if file is not None:
        saved = str(save(output, file, job_id))
        return print_json({"file": saved}) if as_json else typer.echo(saved)
    if raw:
        return write_raw(output)
    return print_json(json_members(output)) if as_json else typer.echo(readable(output))


@app.command()
def watch(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of jobs.", autocompletion=job_ids)],
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Follow one job to its end: its status, its progress, what it yields. Of several jobs, count how they end.

    `--json` prints one event of the job per line; of several jobs, each as it ends.
    """
    with connect(url, api_key) as client:
        if len(job_ids) > 1:
            return many.watch(client, _known(client, job_ids), as_json=as_json)
        events = client.job(job_ids[0]).events()
        if not as_json:
            streams.show(events, statuses=True)
            return None
        for event in events:
            print_json({"event": event.name, "id": event.id, "data": event.data})
    return None


def _known(client: Client, wanted: list[str]) -> list[JobHandle]:
    """Handles on these jobs. Raises the gateway's error for the first unknown one."""
    distinct = list(dict.fromkeys(wanted))
    handles = {handle.id: handle for handle in client.jobs(ids=distinct)}
    return [handles.get(job_id) or client.job(job_id) for job_id in distinct]


@app.command()
def cancel(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="Ids of jobs; or use --tag or --model.", autocompletion=job_ids),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Every job that was submitted with this tag and has not ended.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Every job of this model that waits, those of runs excepted; with --tag only its jobs.",
            autocompletion=model_names,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --model alone: do not ask.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Cancel jobs: at once if they wait; if one is running, its output is dropped when its batch ends."""
    if bool(jobs) == (tag is not None or model is not None):
        raise typer.BadParameter("name one JOB or several, or --tag TAG and perhaps --model MODEL, or --model MODEL")
    if not jobs and tag is None and not yes:
        typer.confirm(f"Cancel every job of {model} that waits?", abort=True, err=True)
    with connect(url, api_key) as client:
        if tag is not None:
            return _print_cancelled(client.cancel_tagged(tag, model=model), as_json=as_json)
        if model is not None:
            return _print_purged(client.operators.purge(model), model, as_json=as_json)
        for job_id in jobs or ():
            _print_cancel(client.job(job_id).cancel(), as_json=as_json)
    return None


def _print_cancel(job: JobView, *, as_json: bool) -> None:
    if as_json:
        return print_json(dict(job.body))
    return typer.echo(f"{job.id} {'cancelled' if job.status == 'cancelled' else f'{job.status}, cancel requested'}")


def _print_cancelled(counts: CancelledJobs, *, as_json: bool) -> None:
    if as_json:
        return print_json({"cancelled": counts.cancelled, "requested": counts.requested})
    return typer.echo(f"{plural(counts.cancelled, 'job')} cancelled, {counts.requested} running: cancel requested")


def _print_purged(cancelled: int, model: str, *, as_json: bool) -> None:
    print_json({"cancelled": cancelled}) if as_json else typer.echo(f"{plural(cancelled, 'job')} of {model} cancelled")


@app.command()
def replay(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", help="Ids of jobs; or use --failed.", autocompletion=job_ids)
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Every failed job of --model that has not been replayed.")] = False,
    model: Annotated[str | None, typer.Option(help="With --failed: the model of the jobs.")] = None,
    code: Annotated[str | None, typer.Option(help="With --failed: only jobs that failed with this error code.")] = None,
    version: Annotated[str | None, typer.Option(help="Run it with this version instead of the original one.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Run the inputs of failed, expired or cancelled jobs again as new jobs. Prints the new ids, one per line."""
    if bool(jobs) == failed or failed != (model is not None):
        raise typer.BadParameter("name one JOB or several, or --failed with --model MODEL")
    with connect(url, api_key) as client:
        for job_id in jobs or ():
            _print_replay(client.job(job_id).replay(version=version), as_json=as_json)
        for handle in client.jobs(model=model, status="failed") if failed else ():
            if _wants_replay(handle.view, code):
                _replay_one(handle, version, as_json=as_json)


def _replay_one(handle: JobHandle, version: str | None, *, as_json: bool) -> None:
    """Replay one of many jobs; skip it if its input is gone."""
    try:
        # The job's id as key: repeated or simultaneous replays create one new job per failed job.
        new = handle.replay(version=version, idempotency_key=f"replay {handle.id}")
    except Conflict as gone:
        return typer.echo(f"skipped: {gone.message}", err=True)
    return _print_replay(new, as_json=as_json)


def _wants_replay(job: JobView, code: str | None) -> bool:
    return not job.replayed_as and (code is None or (job.error is not None and job.error.code == code))


def _print_replay(new: JobHandle, *, as_json: bool) -> None:
    if as_json:
        return print_json(dict(new.view.body))
    return typer.echo(new.id)


def _row(job: JobView) -> tuple[str, ...]:
    took_s = total_seconds(job)
    took = duration(took_s) if took_s is not None else "-"
    return (job.id, job.model, delayed_until(job) or job.status, job.priority or "-", age(job.created_at), took)


def _fields(job: JobView) -> dict[str, object]:
    moments = ("created_at", "not_before", "started_at", "finished_at", "deadline_at")
    return {
        "job": job.id,
        "status": delayed_until(job) or job.status,
        "model": f"{job.model} (version {job.version})" if job.version else job.model,
        "priority": job.priority,
        "position": job.position,
        "attempts": job.attempts,
        "progress": streams.progress_text(job.progress) if job.progress else None,
        **{name: job.body.get(name) for name in moments},
        "tags": ", ".join(job.tags),
        "trace": job.body.get("trace_id"),
        "replay of": job.replay_of or None,
        "replayed as": job.replayed_as or None,
        "error": f"{job.error.message} ({job.error.code})" if job.error else None,
    }
