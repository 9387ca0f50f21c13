"""`penstock jobs list --failed` and `penstock jobs dismiss`: lists the failed inbox and removes jobs from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.display import print_ids, print_json, print_table
from penstock.cli.options import JsonOption, KeyOption, UrlOption, connect, model_names
from penstock.words import plural

if TYPE_CHECKING:
    from penstock.client.sync import Client

# The part of a group's message that is shown; `--json` has the whole.
_MOST_CHARS = 80

GroupOption = Annotated[
    str | None, typer.Option("--group", help="Only jobs with one fault: the id that `penstock jobs list --failed` shows.")
]


class FailedBy(StrEnum):
    """Who caused a failure."""

    CALLER = "caller"
    MODEL = "model"


@dataclass(slots=True)
class InboxGroup:
    """The jobs with one fault: the newest one and their number."""

    newest: Mapping[str, Any]
    count: int = 0


def list_failed(
    connected: Client, model: str | None, group: str | None, fault: FailedBy | None, *, quiet: bool, as_json: bool
) -> None:
    """List the failed inbox by fault; with `as_json` the jobs, with `quiet` their ids, newest first."""
    with connected as client:
        jobs = client.failed.jobs(model, group=group, fault=fault.value if fault else None)
        if quiet:
            return print_ids(job["id"] for job in jobs)
        if as_json:
            for job in jobs:
                print_json(job)
            return None
        groups = _groups(jobs)
    if not groups:
        return typer.echo("no failed jobs", err=True)
    rows = [_row(name, members) for name, members in sorted(groups.items(), key=lambda pair: -pair[1].count)]
    return print_table(("GROUP", "MODEL", "JOBS", "FAULT", "CODE", "NEWEST", "MESSAGE"), rows)


def _groups(jobs: Iterable[dict[str, Any]]) -> dict[str, InboxGroup]:
    groups: dict[str, InboxGroup] = {}
    for job in jobs:
        groups.setdefault(job["group"], InboxGroup(job)).count += 1
    return groups


def _row(name: str, group: InboxGroup) -> tuple[str, ...]:
    job = group.newest
    error = job.get("error") or {"code": job["status"], "message": ""}
    message = " ".join(str(error["message"]).split())
    shown = message if len(message) <= _MOST_CHARS else f"{message[:_MOST_CHARS]}..."
    return name, job["model"], str(group.count), job["fault"], error["code"], job["id"], shown or "-"


def dismiss(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Ids of jobs; or use --model or --all.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Every job of this model, or of its --group.", autocompletion=model_names)
    ] = None,
    group: GroupOption = None,
    every: Annotated[bool, typer.Option("--all", help="Every job of every model.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Take jobs off the failed inbox: somebody has dealt with them. The jobs stay as they are, and can still be replayed."""
    if [bool(jobs), model is not None, every].count(True) != 1 or (group is not None and model is None):
        raise typer.BadParameter("name one JOB or several, or --model MODEL, also with --group GROUP, or --all")
    if not jobs and group is None and not yes:
        of = f"of {model}" if model else "of every model"
        typer.confirm(f"Take every failed job {of} off the inbox?", abort=True, err=True)
    with connect(url, api_key) as client:
        count = client.failed.dismiss(jobs) if jobs else _dismiss_all(client, model, group)
    print_json({"dismissed": count}) if as_json else typer.echo(f"{plural(count, 'job')} dismissed")


def _dismiss_all(client: Client, model: str | None, group: str | None) -> int:
    names = [model] if model is not None else [one["name"] for one in client.models()]
    return sum(client.failed.dismiss_all(name, group=group or "") for name in names)
