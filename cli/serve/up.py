"""`penstock up`: the store, a gateway and a worker as one foreground command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Annotated, Any

import typer

import penstock
from penstock.cli.display import colored, print_faint, print_json
from penstock.cli.exits import NOT_STARTED, OK
from penstock.cli.lazy import STARTED_AT
from penstock.cli.options import ConfigOption, FsyncOption, HostOption, PortOption, StateDirOption, WorkersOption
from penstock.cli.readiness import Readiness, readiness
from penstock.cli.serve import plan
from penstock.cli.serve.plan import ServePlan
from penstock.cli.serve.processes import child, store_server
from penstock.cli.serve.supervisor import ManagedProcess, ProcessSupervisor, StopSignals
from penstock.cli.state import RunningStack, state_lock, write_note
from penstock.settings.keys import is_loopback
from penstock.settings.tables import Settings

app = typer.Typer(add_completion=False)

# Beyond what the worker grants its batches: the time it takes to end itself.
_EXTRA_GRACE_S = 5.0
_ASK_EVERY_S = 0.05
_SAY_AFTER_S = 5.0


@app.command()
def up(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="model.py, model.py:Name, module:Name, model.onnx, name=SOURCE, or a penstock.toml."),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="A built-in task around the model files named: image-classification, ...")
    ] = None,
    config: ConfigOption = None,
    host: HostOption = None,
    port: PortOption = None,
    state_dir: StateDirOption = None,
    workers: WorkersOption = None,
    fsync: FsyncOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when ready; nothing else on stdout.")] = False,
) -> None:
    """Start everything: a store (unless PENSTOCK_REDIS_URL names one), a gateway, a worker, a runner of bulk runs.

    Without MODELS, ./penstock.toml says what to serve. Ctrl-C finishes what runs and ends; a second Ctrl-C ends at once. Jobs
    stay in the state folder: starting again finds them.
    """
    flags = {
        "gateway.host": host,
        "gateway.port": port,
        "store.state_dir": state_dir.absolute() if state_dir else None,
        "store.fsync": fsync,
    }
    chosen = plan.planned(models or [], config=config, flags=flags, task=task, workers=workers, need_files=True)
    plan.need_models(chosen.settings)
    plan.need_linux()
    # Before anything is started: a gateway without keys must not be open to a network, not even for a moment.
    chosen.settings.access_rule()
    stop = StopSignals()
    stop.install()
    with state_lock(chosen.settings.store.state_dir) as note:
        raise typer.Exit(_serve(chosen, note, stop, as_json=as_json))


def _serve(chosen: ServePlan, note: IO[str], stop: StopSignals, *, as_json: bool) -> int:
    settings = chosen.settings
    port = plan.free_port(settings.gateway.host, settings.gateway.port)
    url = plan.local_url(settings.gateway.host, port)
    with store_server(settings) as server:
        write_note(note, RunningStack(os.getpid(), url, settings.store.url or server.url))
        children = _children(chosen, port, _addresses(settings, server))
        # Nobody waits for the runner of bulk runs: it starts when the others are ready, and delays neither.
        runner = children.pop("runner")
        supervisor = ProcessSupervisor(list(children.values()), server, stop=stop, say=_say)
        try:
            supervisor.start()
            ready = _await_ready(supervisor, url)
            if ready:
                _announce(settings, url, as_json=as_json)
                supervisor.add(runner)
                supervisor.run()
            clean = supervisor.drain(settings.worker.grace_s + _EXTRA_GRACE_S)
        finally:
            # Whatever went wrong: the store must not end before those who write to it.
            supervisor.drain(_EXTRA_GRACE_S)
    return OK if clean else NOT_STARTED


def _await_ready(supervisor: ProcessSupervisor, url: str) -> bool:
    """True once the gateway is ready, False if told to stop before."""
    asked = _Asked(url)
    with _progress("starting") as show:
        asked.show = show
        supervisor.run_until(asked)
    return asked.last.ready


class _Asked:
    """The gateway's latest word on its readiness; says what is missing when that takes long."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._said = ""
        self.last = Readiness(False)
        self.show = print_faint

    def __call__(self) -> bool:
        # In short steps within the supervisor's turn, so that being ready is noticed when it happens.
        ends_at = time.monotonic() + 4 * _ASK_EVERY_S
        while not self.last.ready and time.monotonic() < ends_at:
            self.last = readiness(self._url)
            if not self.last.ready:
                time.sleep(_ASK_EVERY_S)
        self._say_if_long()
        return self.last.ready

    def _say_if_long(self) -> None:
        late = time.monotonic() - STARTED_AT > _SAY_AFTER_S
        if late and not self.last.ready and self.last.why != self._said:
            self._said = self.last.why
            self.show(f"waiting: {self.last.why}")


def _addresses(settings: Settings, server: Any) -> dict[str, str]:
    """The store's address for each process. Of our own server each gets a user of its own, who can do what it needs."""
    if settings.store.url:
        return dict.fromkeys(("gateway", "worker", "runner"), settings.store.url)
    # A runner asks and submits as a gateway does.
    return {"gateway": server.gateway_url, "worker": server.worker_url, "runner": server.gateway_url}


def _children(chosen: ServePlan, port: int, addresses: Mapping[str, str]) -> dict[str, ManagedProcess]:
    env = {
        **chosen.env,
        "PENSTOCK_GATEWAY__HOST": chosen.settings.gateway.host,
        "PENSTOCK_GATEWAY__PORT": str(port),
        "PENSTOCK_STORE__STATE_DIR": str(chosen.settings.store.state_dir),
    }
    return {name: child(name, env, addresses[name]) for name in addresses}


def _announce(settings: Settings, url: str, *, as_json: bool) -> None:
    seconds = round(time.monotonic() - STARTED_AT, 2)
    names = list(settings.models)
    if as_json:
        return print_json(
            {
                "ready": True,
                "url": url,
                "models": names,
                "store": _store_word(settings),
                "metrics": _metrics_urls(settings, url),
                "seconds": seconds,
                "pid": os.getpid(),
            }
        )
    scrapes = _metrics_urls(settings, url)
    lines = {
        "gateway": f"{url}   (API {url}/openapi.json)",
        "access": settings.access_rule(),
        "models": ", ".join(names),
        "store": _store_word(settings),
        "metrics": ", ".join([*scrapes["gateway"], *scrapes["worker"]]) or "off, see gateway.metrics_port",
        "try": f"penstock call {names[0]} INPUT",
    }
    typer.echo(typer.style(f"penstock {penstock.__version__} is ready in {seconds:g} s", bold=colored(sys.stdout)))
    for name, text in lines.items():
        typer.echo(f"  {name:<8} {text}")
    sys.stdout.flush()
    return None


def _metrics_urls(settings: Settings, url: str) -> dict[str, list[str]]:
    """Where to scrape: each process of the gateway, and the worker if it was given a port."""
    gateway, worker = settings.gateway, settings.worker
    ports = range(gateway.metrics_port, gateway.metrics_port + gateway.processes) if gateway.metrics_port else ()
    found = [f"{plan.local_url(gateway.metrics_host, port)}/metrics" for port in ports]
    if not gateway.metrics_port and gateway.processes == 1 and is_loopback(gateway.host):
        found = [f"{url}/metrics"]
    own = [f"{plan.local_url(worker.metrics_host, worker.metrics_port)}/metrics"] if worker.metrics_port else []
    return {"gateway": found, "worker": own}


def _store_word(settings: Settings) -> str:
    if settings.store.url:
        # Without what stands before the host, which may be a password.
        return "redis at " + settings.store.url.rpartition("@")[2].rpartition("://")[2]
    return f"embedded, in {settings.store.state_dir} (fsync {settings.store.fsync})"


@contextmanager
def _progress(text: str) -> Iterator[Any]:
    """A turning sign on a terminal, plain lines elsewhere; yields what shows a newer text."""
    if not colored(sys.stderr):
        yield print_faint
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update


def _say(text: str) -> None:
    print_faint(f"penstock up: {text}")
