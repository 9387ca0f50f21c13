"""The verbs of `penstock`: those of the engine and those of extensions. Only tables are loaded here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from penstock.errors import ConfigError
from penstock.extension import Panel, Verb, installed

_PROCESSES = "penstock.cli.serve.processes"

# Verbs by their words: `call`, or `jobs list` for a verb of a group.
Verbs = Mapping[str, Verb]

ENGINE: Verbs = {
    "up": Verb("penstock.cli.serve.up:app", "Start everything: store, gateway, worker. Ends with Ctrl-C.", Panel.SERVE),
    "gateway": Verb(f"{_PROCESSES}:gateway_app", "Start a gateway alone, on a Redis of your own.", Panel.SERVE),
    "worker": Verb(f"{_PROCESSES}:worker_app", "Start a worker alone, on a Redis of your own.", Panel.SERVE),
    "runner": Verb(f"{_PROCESSES}:runner_app", "Start a runner alone: it drives the runs made over HTTP.", Panel.SERVE),
    "flower": Verb("penstock.cli.ops.flower:app", "Start Flower, Celery's monitor, on the store in use.", Panel.SERVE),
    "status": Verb(
        "penstock.cli.ops.status:app",
        "Show in ten lines whether all is well: queues, slots, failures.",
        Panel.USE,
        asks_gateway=True,
    ),
    "call": Verb(
        "penstock.cli.jobs.call:app", "Submit one input to a model and print its output.", Panel.USE, asks_gateway=True
    ),
    "debug": Verb("penstock.cli.jobs.debug:app", "Run a model's code here on one batch, with a debugger.", Panel.USE),
    "jobs": Verb("penstock.cli.jobs.jobs:app", "List, show, cancel and replay jobs.", Panel.USE, asks_gateway=True),
    "models": Verb(
        "penstock.cli.models.models:app", "List the models a gateway serves, or change one.", Panel.USE, asks_gateway=True
    ),
    "workers": Verb(
        "penstock.cli.models.workers:app", "List the live workers, and what they run.", Panel.USE, asks_gateway=True
    ),
    "run": Verb(
        "penstock.cli.runs.run:app", "Run a model over files: resumable, in the input's order.", Panel.USE, asks_gateway=True
    ),
    "bench": Verb("penstock.cli.measure.bench:app", "Measure a model, or any HTTP endpoint, under load.", Panel.USE),
    "tune": Verb("penstock.cli.measure.tune:app", "Find a model's best settings, or how many slots a rate needs.", Panel.USE),
    "new": Verb("penstock.cli.models.starter:app", "Write a folder with a model, its settings and a test.", Panel.HELP),
    "keys": Verb("penstock.cli.ops.keys:app", "Make, list and revoke API keys.", Panel.HELP, asks_gateway=True),
    "audit": Verb("penstock.cli.ops.audit:app", "Show what operators did, newest first.", Panel.HELP, asks_gateway=True),
    "store": Verb("penstock.cli.ops.store:app", "Prepare a Redis of your own: users, functions.", Panel.HELP),
    "probe": Verb("penstock.cli.ops.probe:app", "Check the health of a gateway or worker, for containers.", Panel.HELP),
    "config": Verb("penstock.cli.ops.config:app", "Show the settings in force, or check them.", Panel.HELP),
    "doctor": Verb("penstock.cli.ops.doctor:app", "Check this machine and say what to do next.", Panel.HELP),
}


@cache
def verbs() -> Verbs:
    table = merged(ENGINE, [extension.verbs for extension in installed()])
    return with_options(table, [extension.options for extension in installed()])


def merged(engine: Verbs, extensions: Iterable[Verbs]) -> dict[str, Verb]:
    """The verbs of `penstock`: the engine's, then each extension's, in its group if it has two words.

    Raises `ConfigError` for a verb that exists already, and for one whose group is missing.
    """
    table = dict(engine)
    for words, verb in (pair for more in extensions for pair in more.items()):
        first, _, second = words.partition(" ")
        if second and first not in table:
            raise ConfigError(f"an extension brings the verb {words!r}, and there is no group {first!r}")
        if (second in table[first].more) if second else (first in table):
            raise ConfigError(f"an extension brings the verb {words!r}, which is there already")
        table[first] = replace(table[first], more={**table[first].more, second: verb}) if second else verb
    return table


def with_options(table: Verbs, extensions: Iterable[Mapping[str, str]]) -> dict[str, Verb]:
    """The verbs with the options that each extension adds. Raises `ConfigError` for a verb that is missing."""
    merged_verbs = dict(table)
    for words, part in (pair for options in extensions for pair in options.items()):
        first, _, second = words.partition(" ")
        if first not in merged_verbs:
            raise ConfigError(f"an extension brings options of the verb {words!r}, and there is none")
        verb = merged_verbs[first]
        merged_verbs[first] = replace(verb, options={**verb.options, second: (*verb.options.get(second, ()), part)})
    return merged_verbs
