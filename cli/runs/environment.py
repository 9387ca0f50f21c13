"""The environment of a command that drives runs: the store in use or a new one, and the workers that it starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.cli.exits import StartError
from penstock.cli.runs.remembered import Sources, named_sources, recall
from penstock.cli.serve import setup
from penstock.cli.serve.process_manager import ProcessManager, StopSignals
from penstock.cli.serve.processes import managed_process, store_server
from penstock.cli.serve.setup import ServeSetup
from penstock.cli.state import state_lock, write_note
from penstock.errors import NotFound
from penstock.job import BlobLocation
from penstock.running_stack import RunningStack, running_stack
from penstock.runs.__main__ import RUN_VARIABLE
from penstock.runs.model_lookup import suggest_names

_GRACE_S = 5.0
_WORKER_LOG, _DRIVER_LOG = "run-worker.log", "run-driver.log"


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """The store, the blobs, and the processes that this command started; call `turn` often to supervise them. `add_driver`
    starts another one, which drives parts of the run with that id.

    `served`: the models that these processes serve or load; `sources`: the command line's sources of models;
    `alone`: no other process serves models.
    """

    redis_url: str
    blobs: BlobLocation
    state_dir: Path
    turn: Callable[[], None]
    add_driver: Callable[[str], None]
    served: frozenset[str] = frozenset()
    sources: Sources = field(default_factory=lambda: Sources([]))
    alone: bool = False

    def need_model(self, name: str) -> None:
        """Raises `NotFound` for a model that no worker of this store can serve."""
        # A run of another kind may name no model if its input is unreadable; opening it reports that fault.
        if self.alone and name:
            _need_model(name, self.served)


@contextmanager
def run_environment(
    models: Sequence[str],
    *,
    config: Path | None,
    state_dir: Path | None,
    redis_url: str | None,
    stop: StopSignals,
    say: Callable[[str], None],
    workers: bool,
    model: str = "",
    previous: str = "",
) -> Iterator[RunEnvironment]:
    """The named store, else the one of the `penstock up` in the state folder, else a new one until the block ends.

    `workers`: serve the `models` named here, and those of penstock.toml if no other store was found. Raises `NotFound`,
    before anything starts, if a new store would be used without `model` among them. `previous`: a run whose models are
    served if the command names none.
    """
    flags = {"store.state_dir": state_dir.absolute() if state_dir else None, "store.url": redis_url}
    chosen = setup.serve_setup(models, config=config, flags=flags, need_files=workers)
    store = chosen.settings.store
    known = recall(store.state_dir, previous) if previous and not models and not config else Sources([])
    if known:
        models, config = known.models, Path(known.config) if known.config else None
        flags = {**flags, "store.state_dir": store.state_dir}
        chosen = setup.serve_setup(models, config=config, flags=flags, need_files=workers)
    sources = known or named_sources(chosen.env if models else {}, config=bool(config))
    running = None if store.url else running_stack(store.state_dir)
    store_url = store.url or (running.redis_url if running else "")
    served = frozenset(chosen.settings.models if workers and (models or not store_url) else ())
    if served:
        setup.need_linux()
    if store_url:
        with _workers(chosen, store_url, None, stop=stop, say=say, wanted=bool(served)) as crew:
            yield RunEnvironment(store_url, chosen.settings.blob_location, store.state_dir, *crew, served, sources)
        return
    if workers:
        _need_models(chosen)
        if model:
            _need_model(model, served)
    with state_lock(store.state_dir) as note, store_server(chosen.settings) as server:
        write_note(note, RunningStack(os.getpid(), "", server.url))
        with _workers(chosen, server.url, server, stop=stop, say=say, wanted=workers) as crew:
            yield RunEnvironment(server.url, chosen.settings.blob_location, store.state_dir, *crew, served, sources, alone=True)


def _need_models(chosen: ServeSetup) -> None:
    if not chosen.settings.models:
        raise StartError(
            "nothing serves models here: no Redis is configured, no `penstock up` runs, and there is no penstock.toml",
            hint="name the model's source: penstock run MODEL INPUT -o OUTPUT --models SOURCE",
        )


def _need_model(name: str, served: Iterable[str]) -> None:
    """Only this command's workers use its new store, so no other model can appear there."""
    if name not in served:
        raise NotFound(
            f"no model {name!r} is served{suggest_names(name, served)}",
            hint="correct the name, add the model to penstock.toml, or name its source: --models SOURCE",
        )


@contextmanager
def _workers(
    chosen: ServeSetup, url: str, server: Any, *, stop: StopSignals, say: Callable[[str], None], wanted: bool
) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """Two functions: one supervises the processes, one adds a driver."""
    env = {**chosen.env, "PENSTOCK_STORE__STATE_DIR": str(chosen.settings.store.state_dir)}
    store_url = getattr(server, "worker_url", url)
    workers = [managed_process("worker", env, store_url)] if wanted else []
    for worker in workers:
        # A log would break the progress bar; the run's notes say why a worker does not serve.
        worker.log_path = chosen.settings.store.state_dir / _WORKER_LOG
    supervisor = ProcessManager(workers, server, stop=stop, say=say)
    supervisor.start()

    def add_driver(run_id: str) -> None:
        driver = managed_process("runner", {**env, RUN_VARIABLE: run_id}, url)
        driver.name, driver.log_path = "driver", chosen.settings.store.state_dir / _DRIVER_LOG
        supervisor.add(driver)

    try:
        yield lambda: supervisor.turn(time.monotonic(), deaths_allowed=None), add_driver
    finally:
        # Workers finish their running batches; waiting jobs stay in the store.
        supervisor.drain(chosen.settings.worker.grace_s + _GRACE_S if not stop.count else _GRACE_S)
