"""CUDA runs out of memory under load: batches must be halved, the worker must learn a cap, and all jobs must succeed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.memory_hog import SHARE_PER_ITEM
from penstock.client.handles.job_handle import JobHandle
from penstock.client.sync import Client
from penstock.client.views import JobView
from penstock.errors import PenstockError
from penstock.loadtest.stack import Processes, await_ready, free_port, running

HOG = Path(__file__).with_name("memory_hog.py")
_BATCH = 64
_JOBS = 256
_SUBMITTERS = 32
_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Wave:
    """One load of jobs. `largest_batch`: the most jobs that were settled together."""

    jobs: int
    succeeded: int
    largest_batch: int


def memory_figures(waves: Sequence[Wave], *, restarts: int) -> dict[str, Any]:
    """`ran_out`: a batch was larger than the device holds. `recovered`: this happened, every job succeeded without a restart of
    the child, and the second load had only smaller batches."""
    first, later = waves
    ran_out = first.largest_batch * SHARE_PER_ITEM > 1
    learned = later.largest_batch < first.largest_batch
    return {
        "jobs": first.jobs + later.jobs,
        "succeeded": first.succeeded + later.succeeded,
        "largest_batch_before": first.largest_batch,
        "largest_batch_after": later.largest_batch,
        "child_restarts": restarts,
        "ran_out": ran_out,
        "recovered": ran_out and learned and not restarts and all(wave.jobs == wave.succeeded for wave in waves),
    }


def run_out_of_memory(folder: Path, *, source: Path = HOG, device: str = "cuda") -> dict[str, Any]:
    """Raises `PenstockError` if the stack does not become ready, or a job fails."""
    port, config = free_port(), folder / "memory.toml"
    config.write_text(
        f'[store]\nstate_dir = "{folder / "memory-state"}"\n[gateway]\nport = {port}\n[models.hog]\nsource = "{source}"\n'
        f'device = "{device}"\nmax_batch_size = {_BATCH}\nmax_queue_depth = 10_000\nwarm_up = false\nmax_run_s = 120\n'
    )
    with running(Processes(folder, {"PENSTOCK_CONFIG": str(config)}), [["up", str(config)]]) as processes:
        await_ready(port, processes, path="/readyz")
        with Client(f"http://127.0.0.1:{port}") as client:
            waves = [_wave(client), _wave(client)]
            slots = [slot for worker in client.workers() for slot in worker["slots"]]
    return memory_figures(waves, restarts=sum(slot["restarts"] for slot in slots))


def _wave(client: Client) -> Wave:
    # Many jobs at once: the queue must fill faster than the model empties it, or all batches are small.
    with ThreadPoolExecutor(_SUBMITTERS) as pool:
        handles = list(pool.map(lambda number: client.submit("hog", number), range(_JOBS)))
    views = [_ended(handle) for handle in handles]
    sizes = [view.batch.size for view in views if view.batch is not None]
    return Wave(len(views), sum(view.status == "succeeded" for view in views), max(sizes, default=0))


def _ended(handle: JobHandle) -> JobView:
    view = handle.wait(_TIMEOUT_S)
    if view.status == "failed":
        # The first failed job is enough to say what happened.
        raise PenstockError(f"job {view.id} failed on a device short of memory: {view.body.get('error')}")
    return view
