"""The verbs of `penstock`: those of the engine, and those that extensions bring. Nothing is loaded here but the tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from penstock.cli.capabilities import DECLARED
from penstock.cli.command_entry import HELP, SERVE, USE, CommandEntry, Verbs, merged

_PROCESSES = "penstock.cli.serve.processes"

ENGINE: Verbs = {
    "up": CommandEntry("penstock.cli.serve.up", "Start everything: store, gateway, worker. Ends with Ctrl-C.", SERVE),
    "gateway": CommandEntry(_PROCESSES, "Start a gateway alone, on a Redis of your own.", SERVE, app="gateway_app"),
    "worker": CommandEntry(_PROCESSES, "Start a worker alone, on a Redis of your own.", SERVE, app="worker_app"),
    "runner": CommandEntry(_PROCESSES, "Start a runner alone: it drives the runs made over HTTP.", SERVE, app="runner_app"),
    "flower": CommandEntry("penstock.cli.ops.flower", "Start Flower, Celery's monitor, on the store in use.", SERVE),
    "status": CommandEntry(
        "penstock.cli.ops.status",
        "Show in ten lines whether all is well: queues, slots, failures, store.",
        USE,
        asks_gateway=True,
    ),
    "call": CommandEntry("penstock.cli.jobs.call", "Submit one input to a model and print its output.", USE, asks_gateway=True),
    "debug": CommandEntry("penstock.cli.jobs.debug", "Run a model's code here on one batch, with a debugger.", USE),
    "jobs": CommandEntry("penstock.cli.jobs.jobs", "List, show, cancel and replay jobs.", USE, asks_gateway=True),
    "models": CommandEntry(
        "penstock.cli.models.models", "List the models a gateway serves, or change one.", USE, asks_gateway=True
    ),
    "workers": CommandEntry("penstock.cli.models.workers", "List the live workers and what they run.", USE, asks_gateway=True),
    "run": CommandEntry(
        "penstock.cli.runs.run", "Run a model over files: resumable, in the input's order.", USE, asks_gateway=True
    ),
    "bench": CommandEntry("penstock.cli.measure.bench", "Measure a model, or any HTTP endpoint, under load.", USE),
    "tune": CommandEntry("penstock.cli.measure.tune", "Find a model's best settings, or how many workers a rate needs.", USE),
    "new": CommandEntry("penstock.cli.models.starter", "Write a folder with a model, its settings and a test.", HELP),
    "keys": CommandEntry("penstock.cli.ops.keys", "Make, list and revoke API keys.", HELP, asks_gateway=True),
    "audit": CommandEntry("penstock.cli.ops.audit", "Show what operators did, newest first.", HELP, asks_gateway=True),
    "store": CommandEntry("penstock.cli.ops.store", "Prepare a Redis of your own: users, functions.", HELP),
    "probe": CommandEntry("penstock.cli.ops.probe", "Check the health of a gateway or worker, for containers.", HELP),
    "config": CommandEntry("penstock.cli.ops.config", "Show the settings in force, or check them.", HELP),
    "doctor": CommandEntry("penstock.cli.ops.doctor", "Check this machine and say what to do next.", HELP),
}


@cache
def verbs() -> Mapping[str, CommandEntry]:
    return merged(ENGINE, [one.verbs for one in DECLARED])
