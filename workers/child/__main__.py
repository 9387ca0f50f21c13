"""The child process: loads one model and runs its batches. It knows no queue and has no credentials.

`threads.py` says how batches and shards go through its threads.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
import time
from dataclasses import replace

from penstock.errors import HandlerLoadError, PenstockError
from penstock.handlers.contract import tracebacks
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.process_lifetime import parent_binding
from penstock.workers.child import confinement, warmup
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.printed import Speaker, mark_lines
from penstock.workers.child.shards.sizes import ShardSizes
from penstock.workers.child.threads import CRASH_EXIT, ChildThreads
from penstock.workers.ipc.frames import LoadFailed, LoadModel, Ready
from penstock.workers.ipc.progress_page import ProgressPage
from penstock.workers.ipc.wire import ChildWire


def _load(order: LoadModel, speaker: Speaker) -> tuple[Loaded, Calls, Ready]:
    began = time.monotonic()
    loaded = load(
        order.source,
        order.model,
        version=order.version,
        device=order.device,
        threads=order.threads,
        options=order.options,
        task=order.task,
        runtime=order.runtime,
        max_batch_size=order.max_batch_size,
        requirements=order.requirements,
        loader=order.loader,
        modules=order.modules,
    )
    calls = Calls(loaded := _given(loaded, order))
    warm = _warm_up(loaded, order, calls, speaker)
    info = loaded.info()
    return (
        loaded,
        calls,
        Ready(
            load_s=time.monotonic() - began,
            provider=loaded.provider,
            description=info.description,
            accepts=info.accepts,
            schemas=(info.input_schema, info.output_schema),
            warm=list(warm.runs),
            warm_origin=warm.origin,
            warm_note=warm.note,
            max_batch_size=loaded.attributes.max_batch_size,
            max_wait_s=loaded.attributes.max_wait_s,
            fits=warm.fits,
            asks=loaded.asks,
            streams=info.streams,
            answers=info.answers,
            at_once=loaded.at_once,
            warnings=loaded.warnings,
        ),
    )


def _given(loaded: Loaded, order: LoadModel) -> Loaded:
    """With what the settings say of inputs. Raises `HandlerLoadError` if the handler would never get what they name."""
    if order.told and not (loaded.asks or loaded.may_look):
        raise HandlerLoadError(
            f"request_headers and query name {', '.join(order.told)}, and the handler asks for no requests: annotate its first "
            "stage with list[penstock.Request[...]], give the function a parameter `context` for context.requests, or take "
            "them out of the settings"
        )
    loaded = replace(loaded, told=bool(order.told))
    if not order.input_urls:
        return loaded
    from penstock.inputs.form import names_files

    if not names_files(loaded.input_schema):
        raise HandlerLoadError(
            "input_urls is set, and no field of the model's input is a penstock.File or penstock.Image: annotate one, or take "
            "input_urls out of the settings"
        )
    from penstock.workers.child.input_urls import trust

    trust(order.input_urls_ca)
    ca = order.input_urls_ca
    return replace(loaded, input_urls=order.input_urls, input_urls_s=order.input_urls_s, input_urls_ca=ca)


def _warm_up(loaded: Loaded, order: LoadModel, calls: Calls, speaker: Speaker) -> warmup.WarmUp:
    if not order.warm_up:
        return warmup.WarmUp(note="switched off")
    if loaded.at_once and loaded.handler.sample is None:
        # It calls other services, which must not get generated inputs.
        return warmup.WarmUp(note="an async handler without a sample")
    # The items of an async handler go to it one by one.
    most = 1 if loaded.at_once else loaded.context.max_batch_size
    sizes = warmup.sizes(most, order.runtime.batch_buckets)
    with loaded.context.metrics.paused(), speaker.warming_up():
        return warmup.warm_up(loaded, sizes, calls=calls, budget_s=order.warm_budget_s)


def _limit_resources(order: LoadModel) -> None:
    """Set cores and memory before anything heavy is imported."""
    if order.cores:
        os.sched_setaffinity(0, order.cores)
    if order.memory_limit_bytes:
        # Limits private writable memory and not address space: model libraries reserve gigabytes of it that they never use.
        resource.setrlimit(resource.RLIMIT_DATA, (order.memory_limit_bytes, order.memory_limit_bytes))


def main(argv: list[str]) -> int:
    wire_fd, page_fd, parent = map(int, argv[:3])
    # The parent is the supervisor's slot thread: the kernel means the thread that started this process.
    parent_binding(parent, death_signal=signal.SIGKILL, exit_code=CRASH_EXIT)()
    for fd in (wire_fd, page_fd):
        os.set_inheritable(fd, False)
    speaker = mark_lines()
    wire = ChildWire(socket.socket(fileno=wire_fd))
    order = wire.read()
    if not isinstance(order, LoadModel):
        return 0
    _limit_resources(order)
    tracebacks.are_kept, tracebacks.model = order.keep_tracebacks, order.model
    if not confinement.hide():
        sys.stdout.write(f"This kernel has no Landlock: model code can read the secrets below {confinement.SECRETS}.\n")
    try:
        loaded, calls, ready = _load(order, speaker)
    except Exception as error:  # noqa: BLE001 - model code may raise anything, and the supervisor reports it
        wire.write(LoadFailed(_message(error)))
        return 1
    speaker.running = loaded.context.running
    loaded.context.running.stream_bytes = order.max_stream_bytes
    loaded.context.running.max_run_s = order.max_run_s
    # The model stays until the process ends: exempt it from every later garbage collection.
    gc.collect()
    gc.freeze()
    wire.write(ready)
    sizes = ShardSizes(loaded.context.max_batch_size, warm={run.size: run.run_s for run in ready.warm})
    if ready.fits is not None:
        sizes.cap(ready.fits)
    _threads_of(loaded)(wire, ProgressPage(page_fd), loaded, sizes, calls).serve()
    return 0


def _threads_of(loaded: Loaded) -> type[ChildThreads]:
    if not loaded.at_once:
        return ChildThreads
    # Only async models load what their tasks need.
    from penstock.workers.child.overlap import OverlapThreads

    return OverlapThreads


def _message(error: Exception) -> str:
    return error.message if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
