"""The `penstock` command: the table of its verbs, and the last handler of errors. Each verb is loaded when it is called."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, ClassVar

import typer

import penstock
from penstock.cli import exits
from penstock.cli.lazy import CommandEntry, LazyGroup
from penstock.process_lifetime import leave_at_once

_SERVE, _USE, _HELP = "Serve", "Use", "Set up and inspect"
_PROCESSES = "penstock.cli.serve.processes"


class Penstock(LazyGroup):
    table: ClassVar[Mapping[str, CommandEntry]] = {
        "up": CommandEntry("penstock.cli.serve.up", "Start everything: store, gateway, worker. Ends with Ctrl-C.", _SERVE),
        "torchserve": CommandEntry(
            "penstock.extensions.torchserve.cli.start",
            "Start what `torchserve` would: its store, its settings, its addresses.",
            _SERVE,
        ),
        "gateway": CommandEntry(_PROCESSES, "Start a gateway alone, on a Redis of your own.", _SERVE, app="gateway_app"),
        "worker": CommandEntry(_PROCESSES, "Start a worker alone, on a Redis of your own.", _SERVE, app="worker_app"),
        "runner": CommandEntry(
            _PROCESSES, "Start a runner alone: it drives the runs made over HTTP.", _SERVE, app="runner_app"
        ),
        "flower": CommandEntry("penstock.cli.ops.flower", "Start Flower, Celery's monitor, on the store in use.", _SERVE),
        "call": CommandEntry("penstock.cli.jobs.call", "Submit one input to a model and print its output.", _USE),
        "debug": CommandEntry("penstock.cli.jobs.debug", "Run a model's code here on one batch, with a debugger.", _USE),
        "jobs": CommandEntry("penstock.cli.jobs.jobs", "List, show, cancel and replay jobs.", _USE),
        "webhooks": CommandEntry(
            "penstock.extensions.webhooks.cli", "Secrets of webhooks; events that were not delivered.", _USE
        ),
        "models": CommandEntry("penstock.cli.models.models", "List the models a gateway serves, or change one.", _USE),
        "workers": CommandEntry("penstock.cli.models.workers", "List the live workers and what they run.", _USE),
        "history": CommandEntry("penstock.extensions.history.cli", "Show what happened to a model lately, step by step.", _USE),
        "run": CommandEntry("penstock.cli.runs.run", "Run a model over files: resumable, in the input's order.", _USE),
        "bench": CommandEntry("penstock.cli.measure.bench", "Measure a model, or any HTTP endpoint, under load.", _USE),
        "tune": CommandEntry(
            "penstock.cli.measure.tune", "Find a model's best settings, or how many workers a rate needs.", _USE
        ),
        "new": CommandEntry("penstock.cli.models.starter", "Write a folder with a model, its settings and a test.", _HELP),
        "import": CommandEntry(
            "penstock.extensions.torchserve.cli.writing", "Write a penstock.toml from settings of TorchServe.", _HELP
        ),
        "keys": CommandEntry("penstock.cli.ops.keys", "Make, list and revoke API keys.", _HELP),
        "audit": CommandEntry("penstock.cli.ops.audit", "Show what operators did, newest first.", _HELP),
        "store": CommandEntry("penstock.cli.ops.store", "Prepare a Redis of your own: users, functions.", _HELP),
        "secrets": CommandEntry("penstock.cli.ops.deployment", "Write the secret files of a containerized deployment.", _HELP),
        "probe": CommandEntry("penstock.cli.ops.probe", "Check the health of a gateway or worker, for containers.", _HELP),
        "config": CommandEntry("penstock.cli.ops.config", "Show the settings in force, or check them.", _HELP),
        "devices": CommandEntry(
            "penstock.cli.models.devices", "Show this machine's cores and GPUs, and which slot gets what.", _HELP
        ),
        "doctor": CommandEntry("penstock.cli.ops.doctor", "Check this machine and say what to do next.", _HELP),
    }


app = typer.Typer(
    cls=Penstock,
    name="penstock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exits.HELP,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Durable, micro-batched model inference on Celery and Redis.

    First steps: penstock up examples/square.py, then penstock call square '{"x": 4}'.
    """


def main() -> None:
    """The process exits with one of the codes in `exits`."""
    leave_at_once()
    as_json = "--json" in sys.argv[1:]
    try:
        # In standalone mode typer prints wrong usage as prose; otherwise it raises the error, or returns an early exit's code.
        code = app(prog_name="penstock", standalone_mode=not as_json)
    except Exception as error:  # noqa: BLE001 - the last handler: every error is reported in the same way
        code = exits.report(error, as_json=as_json)
    sys.exit(code)


if __name__ == "__main__":
    main()
