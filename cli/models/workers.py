"""`penstock workers` lists workers; `drain` has one take no more jobs, and `resume` has it take jobs again."""

from __future__ import annotations

import socket
from typing import Annotated, Any

import typer

from penstock.cli.display import print_faint, print_ids, print_json, print_table
from penstock.cli.options import JsonOption, KeyOption, QuietOption, UrlOption, connect
from penstock.words import duration, percent, size

app = typer.Typer(add_completion=False, invoke_without_command=True)
WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="The worker's name, as `penstock workers` shows it.")]


@app.callback()
def workers(
    ctx: typer.Context,
    pids: Annotated[bool, typer.Option("--pids", help="Print only the process ids of those on this host.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """List the live workers, one line per slot (`--json` prints one worker per line); with a command, drain or resume one."""
    if ctx.invoked_subcommand is not None:
        return None
    with connect(url, api_key) as client:
        views = client.workers()
    if pids:
        return print_pids(views)
    if quiet:
        print_ids(str(worker["name"]) for worker in views)
    elif as_json:
        for worker in views:
            print_json(worker)
    elif views:
        columns = ("WORKER", "HOST", "MODEL", "VERSION", "STATE", "DEVICE", "CORES", "LOADED", "FIRST CALL")
        print_table(columns, [row for worker in views for row in _rows(worker)])
        for line in dict.fromkeys(
            line for worker in views for line in (*_drained(worker), *_machine(worker), *_faults(worker))
        ):
            print_faint(line)
    else:
        typer.echo("no worker is alive; start one with `penstock worker`, or all with `penstock up`", err=True)
    return None


def print_pids(workers: list[dict[str, Any]]) -> None:
    """Print one process id per line. Workers on other hosts are left out, because their ids mean nothing here."""
    here = socket.gethostname()
    for worker in workers:
        if worker.get("host") == here:
            typer.echo(worker["pid"])


@app.command()
def drain(worker: WorkerArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Have a worker end what it holds and take nothing more, also after a restart, until you resume it."""
    with connect(url, api_key) as client:
        done = client.operators.drain(worker)
    print_json(done) if as_json else typer.echo(f"{worker} takes no more jobs; `penstock workers` says when it holds none")


@app.command()
def resume(worker: WorkerArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Have a drained worker take jobs again."""
    with connect(url, api_key) as client:
        done = client.operators.resume_worker(worker)
    print_json(done) if as_json else typer.echo(f"{worker} takes jobs again")


def _rows(worker: dict[str, Any]) -> list[tuple[str, ...]]:
    slots = worker.get("slots") or [{}]
    who = (str(worker.get("name", "?")), str(worker.get("host", "-")))
    return [
        (*who, *(_cell(slot.get(name)) for name in ("model", "version", "state", "device", "cores")), *_start_of(slot))
        for slot in slots
    ]


def _drained(worker: dict[str, Any]) -> list[str]:
    holding = worker.get("holding") or "none"
    return [f"{worker.get('name')}: drained, and holds {holding} of its jobs"] if worker.get("drained") else []


def _faults(worker: dict[str, Any]) -> list[str]:
    """The reasons why slots do not run their model, once each: slots of one model often have the same fault."""
    slots = [slot for slot in worker.get("slots") or [] if slot.get("error")]
    return [f"{slot.get('model')} {slot.get('version')} {slot.get('state')}: {slot['error']}" for slot in slots]


def _machine(worker: dict[str, Any]) -> list[str]:
    """The load of the machine. Workers of one machine measure at different times."""
    use = worker.get("machine")
    if not use:
        return []
    memory = f"{size(use['memory_used_bytes'])} of {size(use['memory_total_bytes'])}"
    busy = f"processors {percent(use['cpu_share'])}, load {use['load_average']:.1f}"
    return [f"{worker.get('name')}: the machine's {busy}, memory {memory}"]


def _start_of(slot: dict[str, Any]) -> tuple[str, str]:
    """The model's load time, including warm-up, and its slowest first call with its batch size."""
    first = (slot.get("warm_up") or {}).get("first_call_s") or {}
    loaded = duration(slot["load_s"]) if slot.get("load_s") else "-"
    size = max(first, key=first.__getitem__, default=None)
    return loaded, f"{duration(first[size])} ({size})" if size else "-"


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(str(item) for item in value) or "-"
    return str(value) if value not in (None, "") else "-"
