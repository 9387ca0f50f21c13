"""`penstock up`: the store, a gateway and a worker as one foreground command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Annotated, Any

import typer

import penstock
from penstock.broker.server.users import CELERY
from penstock.cli.display import is_colored, print_faint, print_json
from penstock.cli.exits import NOT_STARTED, OK
from penstock.cli.lazy import STARTED_AT
from penstock.cli.options import ConfigOption, FsyncOption, HostOption, PortOption, SlotsOption, StateDirOption
from penstock.cli.serve import setup
from penstock.cli.serve.first_call import first_call, other_name
from penstock.cli.serve.process_manager import ManagedProcess, ProcessManager, StopSignals
from penstock.cli.serve.processes import managed_process, store_server
from penstock.cli.serve.setup import ServeSetup
from penstock.cli.serve.start_watch import StartWatch, farewell, running_jobs
from penstock.cli.state import Readiness, check_readiness, note_of_elsewhere, state_lock, write_note
from penstock.running_stack import RunningStack
from penstock.settings.keys import is_loopback, local_url
from penstock.settings.store_url import without_secrets
from penstock.settings.tables import Settings

app = typer.Typer(add_completion=False)

# The time of the worker's own shutdown, after the time for its running batches.
_EXTRA_GRACE_S = 5.0
_CHECK_EVERY_S = 0.05
_CHECK_LATE_S = 0.5
_SAY_AFTER_S = 5.0


@app.command()
def up(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="model.py, model.py:Name, module:Name, model.onnx, hf://org/name, name=SOURCE, or a penstock.toml."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="The built-in task of the model files named: image-classification, ...")
    ] = None,
    config: ConfigOption = None,
    host: HostOption = None,
    port: PortOption = None,
    state_dir: StateDirOption = None,
    slots: SlotsOption = None,
    fsync: FsyncOption = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Reload a model when a file of its code changes, for development.")
    ] = False,
    keep_trying: Annotated[
        bool, typer.Option("--keep-trying", help="Go on although no model can be loaded. Default: end with code 7.")
    ] = False,
    celery: Annotated[
        bool, typer.Option("--celery", help="Let Celery clients of this machine in, and print their broker URL.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when ready; nothing else on stdout.")] = False,
) -> None:
    """Start everything: a store (unless PENSTOCK_REDIS_URL names one), a gateway, a worker, and a runner of runs over files.

    Without MODELS, ./penstock.toml says what to serve. Ctrl-C finishes running batches, then ends; a second Ctrl-C ends at
    once. Jobs stay in the state folder, and the next start continues with them. Ends with code 7 when no model can be loaded.
    """
    flags = {
        "gateway.host": host,
        "gateway.port": port,
        "store.state_dir": state_dir.absolute() if state_dir else None,
        "store.fsync": fsync,
        "worker.reload": reload or None,
    }
    chosen = setup.serve_setup(models or [], config=config, flags=flags, task=task, slots=slots, need_files=True)
    setup.need_models(chosen.settings)
    _keep_tracebacks_at_a_terminal(chosen)
    celery_port = setup.celery_port(chosen.settings) if celery else 0
    # A user who names a state folder also has to name the gateway.
    with nullcontext() if state_dir else note_of_elsewhere(chosen.settings.store.state_dir, Path.cwd()) as note:
        code = serve(chosen, keep_trying=keep_trying, as_json=as_json, celery_port=celery_port, noted_here=note)
    raise typer.Exit(code)


def _keep_tracebacks_at_a_terminal(chosen: ServeSetup) -> None:
    """At a terminal, the reader of the worker's log is the author of the model, unless the settings say otherwise."""
    if chosen.settings.worker.keep_tracebacks is None and sys.stdout.isatty():
        chosen.env["PENSTOCK_WORKER__KEEP_TRACEBACKS"] = "true"


def serve(
    chosen: ServeSetup, *, keep_trying: bool, as_json: bool, celery_port: int = 0, noted_here: IO[str] | None = None
) -> int:
    """Run the whole stack until a signal ends it; returns the exit code. Raises `PenstockError` if it cannot start.

    `noted_here`: see `note_of_elsewhere`.
    """
    setup.need_linux()
    setup.need_room(chosen.settings)
    # Checked before anything starts: a gateway without keys must never be open to a network.
    chosen.settings.access_rule()
    setup.fetch_models(chosen)
    stop = StopSignals()
    stop.install()
    with state_lock(chosen.settings.store.state_dir) as note:
        notes = [note, noted_here] if noted_here else [note]
        return _serve(chosen, notes, stop, keep_trying=keep_trying, as_json=as_json, celery_port=celery_port)


def _serve(
    chosen: ServeSetup, notes: Sequence[IO[str]], stop: StopSignals, *, keep_trying: bool, as_json: bool, celery_port: int
) -> int:
    settings = chosen.settings
    port = setup.free_port(settings.gateway.host, settings.gateway.port)
    url = local_url(settings.gateway.host, port)
    setup.need_sound_store(settings)
    with store_server(settings, port=celery_port) as server:
        for note in notes:
            write_note(note, RunningStack(os.getpid(), url, settings.store.url or server.url))
        processes = processes_of(chosen, port, _addresses(settings, server))
        # Readiness does not depend on the runner, so it starts last.
        runner = processes.pop("runner")
        manager = ProcessManager(list(processes.values()), server, stop=stop, say=_say)
        try:
            manager.start()
            watch = StartWatch(settings.store.url or server.url, settings.served_names, keep_trying=keep_trying)
            ready = _await_ready(manager, url, watch)
            if ready:
                celery = server.port_url(CELERY) if celery_port else ""
                _announce(settings, url, celery=celery, unserved=watch.unserved or {}, as_json=as_json)
                manager.add(runner)
                manager.run()
                _say(farewell(running_jobs(settings, settings.store.url or server.url)))
            clean = manager.drain(settings.worker.grace_s + _EXTRA_GRACE_S)
        finally:
            # After any error, the store must outlive the processes that write to it.
            manager.drain(_EXTRA_GRACE_S)
    return OK if clean else NOT_STARTED


def _await_ready(manager: ProcessManager, url: str, watch: StartWatch) -> bool:
    """True once the gateway is ready, possibly without models that cannot be loaded; False if a stop signal comes first.
    Raises `StartError` if it cannot become ready.
    """
    poller = _ReadinessPoller(url, watch)
    with _progress("starting") as show:
        poller.show = show
        manager.run_until(poller)
    return poller.is_done


class _ReadinessPoller:
    """Polls the gateway's readiness; shows what is missing when the start takes long."""

    def __init__(self, url: str, watch: StartWatch) -> None:
        self._url, self._watch = url, watch
        self._said = ""
        self.last = Readiness(False, answers=False)
        self.show = print_faint

    def __call__(self) -> bool:
        # Short steps within the manager's turn, so that readiness is noticed at once.
        is_late = time.monotonic() - STARTED_AT > _SAY_AFTER_S
        # A gateway logs each refused probe, so a long wait polls seldom.
        pause_s = _CHECK_LATE_S if is_late else _CHECK_EVERY_S
        ends_at = time.monotonic() + 4 * _CHECK_EVERY_S
        while not self.last.ready and time.monotonic() < ends_at:
            self.last = check_readiness(self._url)
            if not self.last.ready:
                time.sleep(pause_s)
        self._say_if_late(is_late=is_late)
        if self.last.answers and not self.last.ready:
            self._watch.check()
        return self.is_done

    @property
    def is_done(self) -> bool:
        """Whether everything is ready, except models that cannot be loaded, which workers keep trying."""
        return self.last.ready or self._watch.unserved is not None

    def _say_if_late(self, *, is_late: bool) -> None:
        if is_late and not self.last.ready and self.last.why != self._said:
            self._said = self.last.why
            self.show(f"waiting: {self.last.why}")


def _addresses(settings: Settings, server: Any) -> dict[str, str]:
    """The store's address for each process. The embedded server has a user for each, with only the rights that it needs."""
    if settings.store.url:
        return dict.fromkeys(("gateway", "worker", "runner"), settings.store.url)
    # A runner needs the rights of a gateway: it reads and submits.
    return {"gateway": server.gateway_url, "worker": server.worker_url, "runner": server.gateway_url}


def processes_of(chosen: ServeSetup, port: int, addresses: Mapping[str, str]) -> dict[str, ManagedProcess]:
    env = {
        **chosen.env,
        "PENSTOCK_GATEWAY__HOST": chosen.settings.gateway.host,
        "PENSTOCK_GATEWAY__PORT": str(port),
        "PENSTOCK_STORE__STATE_DIR": str(chosen.settings.store.state_dir),
    }
    if not chosen.settings.store.url and chosen.settings.store.fsync == "always":
        env["PENSTOCK_STORE__REQUIRE"] = "fsync"
    return {name: managed_process(name, env, addresses[name]) for name in addresses}


def _announce(settings: Settings, url: str, *, celery: str, unserved: Mapping[str, str], as_json: bool) -> None:
    seconds = round(time.monotonic() - STARTED_AT, 2)
    names = [name for name in settings.served_names if name not in unserved]
    for name, why in unserved.items():
        print_faint(f"{name} cannot be loaded and is tried again; the others are served: {why}")
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
                **({"celery": celery} if celery else {}),
                **({"unserved": dict(unserved)} if unserved else {}),
            }
        )
    scrapes = _metrics_urls(settings, url)
    lines = {
        **({"open": f"{url}/   (the dashboard: queues, jobs, models)"} if settings.has_dashboard else {}),
        "gateway": f"{url}   (API {url}/openapi.json)",
        **settings.addresses(url),
        "access": settings.access_rule(),
        "models": ", ".join(names) or "none yet",
        "store": _store_word(settings),
        "metrics": ", ".join([*scrapes["gateway"], *scrapes["worker"]]) or "off, see gateway.metrics_port",
        **({"celery": f"{celery}   (broker and backend; it holds a password)"} if celery else {}),
        **({"try": first_call(url, names[0], state_dir=settings.store.state_dir)} if names else {}),
    }
    typer.echo(typer.style(f"penstock {penstock.__version__} is ready in {seconds:g} s", bold=is_colored(sys.stdout)))
    for name, text in lines.items():
        typer.echo(f"  {name:<8} {text}")
    for spec in settings.specs():
        if function := other_name(spec.name, spec.source):
            _say(f"{function}() is the model {spec.name}, as its file; {function}={spec.name}.py would name it {function}")
    sys.stdout.flush()
    return None


def _metrics_urls(settings: Settings, url: str) -> dict[str, list[str]]:
    """The URLs to scrape: one per gateway process, and the worker's if it has a metrics port."""
    gateway, worker = settings.gateway, settings.worker
    ports = range(gateway.metrics_port, gateway.metrics_port + gateway.processes) if gateway.metrics_port else ()
    of_gateway = [f"{local_url(gateway.metrics_host, port)}/metrics" for port in ports]
    if not gateway.metrics_port and gateway.processes == 1 and is_loopback(gateway.host):
        of_gateway = [f"{url}/metrics"]
    own = [f"{local_url(worker.metrics_host, worker.metrics_port)}/metrics"] if worker.metrics_port else []
    return {"gateway": of_gateway, "worker": own}


def _store_word(settings: Settings) -> str:
    if settings.store.url:
        return "redis at " + without_secrets(settings.store.url).rpartition("://")[2]
    return f"embedded, in {settings.store.state_dir} (fsync {settings.store.fsync})"


@contextmanager
def _progress(text: str) -> Iterator[Any]:
    """A spinner on a terminal, plain lines elsewhere; yields the function that shows a new text."""
    if not is_colored(sys.stderr):
        yield print_faint
        return
    from rich.console import Console
    from rich.text import Text

    # Rich would read text in brackets as a style.
    with Console(stderr=True).status(Text(text)) as status:
        yield lambda newer: status.update(Text(newer))


def _say(text: str) -> None:
    print_faint(f"penstock up: {text}")
