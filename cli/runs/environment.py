"""The ground a run stands on: the store in use, else one of its own, and workers where it was told to bring them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.blob_place import BlobPlace
from penstock.cli.exits import StartError
from penstock.cli.serve import plan
from penstock.cli.serve.plan import ServePlan
from penstock.cli.serve.processes import child, store_server
from penstock.cli.serve.supervisor import ProcessSupervisor, StopSignals
from penstock.cli.state import RunningStack, running_stack, state_lock, write_note
from penstock.errors import NotFound
from penstock.runs.model_lookup import meant

_GRACE_S = 5.0
_WORKER_LOG = "run-worker.log"


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """Where the store and the blobs are; `turn` keeps up what was started for this command, and is to be called often.

    `brought`: the models that workers started for this command serve, or soon will; `alone`: nobody else serves any.
    """

    redis_url: str
    blobs: BlobPlace
    state_dir: Path
    turn: Callable[[], None]
    brought: frozenset[str] = frozenset()
    alone: bool = False

    def need_model(self, name: str) -> None:
        """Raises `NotFound` for a model that no worker here will ever serve."""
        # A batch whose first line cannot be read names no model; what is wrong with it is told when it is opened.
        if self.alone and name:
            _need_model(name, self.brought)


@contextmanager
def standing(
    models: Sequence[str],
    *,
    config: Path | None,
    state_dir: Path | None,
    redis_url: str | None,
    stop: StopSignals,
    say: Callable[[str], None],
    workers: bool,
    model: str = "",
) -> Iterator[RunEnvironment]:
    """The store named, else that of the `penstock up` in the state folder, else one that lives as long as the block does.

    `workers`: serve the `models` named here in any case, and those of penstock.toml where nobody else serves; where `model` is
    none of these, `NotFound` is raised before anything is started.
    """
    flags = {"store.state_dir": state_dir.absolute() if state_dir else None, "store.url": redis_url}
    chosen = plan.planned(models, config=config, flags=flags, need_files=workers)
    store = chosen.settings.store
    running = None if store.url else running_stack(store.state_dir)
    found = store.url or (running.redis_url if running else "")
    brought = frozenset(chosen.settings.models if workers and (models or not found) else ())
    if brought:
        plan.need_linux()
    if found:
        with _workers(chosen, found, None, stop=stop, say=say, wanted=bool(brought)) as turn:
            yield RunEnvironment(found, chosen.settings.blob_place, store.state_dir, turn, brought)
        return
    if workers:
        _need_models(chosen)
        if model:
            _need_model(model, brought)
    with state_lock(store.state_dir) as note, store_server(chosen.settings) as server:
        write_note(note, RunningStack(os.getpid(), "", server.url))
        with _workers(chosen, server.url, server, stop=stop, say=say, wanted=workers) as turn:
            yield RunEnvironment(server.url, chosen.settings.blob_place, store.state_dir, turn, brought, alone=True)


def _need_models(chosen: ServePlan) -> None:
    if not chosen.settings.models:
        raise StartError(
            "nothing serves models here: no Redis is named, no `penstock up` runs, and there is no penstock.toml",
            hint="name the model's source: penstock run MODEL INPUT -o OUTPUT --models SOURCE",
        )


def _need_model(name: str, brought: Iterable[str]) -> None:
    """A store of one's own has no other workers, so waiting for another model would be in vain."""
    if name not in brought:
        raise NotFound(
            f"no model {name!r} is served{meant(name, brought)}",
            hint="correct the name, add the model to penstock.toml, or name its source: --models SOURCE",
        )


@contextmanager
def _workers(
    chosen: ServePlan, url: str, server: Any, *, stop: StopSignals, say: Callable[[str], None], wanted: bool
) -> Iterator[Callable[[], None]]:
    env = {**chosen.env, "PENSTOCK_STORE__STATE_DIR": str(chosen.settings.store.state_dir)}
    store_url = getattr(server, "worker_url", url)
    children = [child("worker", env, store_url)] if wanted else []
    for each in children:
        # Beside a progress bar, a worker's log is noise; what keeps it from serving is said by the run.
        each.log_path = chosen.settings.store.state_dir / _WORKER_LOG
    supervisor = ProcessSupervisor(children, server, stop=stop, say=say)
    supervisor.start()
    try:
        yield lambda: supervisor.turn(time.monotonic(), deaths_allowed=None)
    finally:
        # A batch that runs is finished; what waits stays in the store.
        supervisor.drain(chosen.settings.worker.grace_s + _GRACE_S if not stop.count else _GRACE_S)
