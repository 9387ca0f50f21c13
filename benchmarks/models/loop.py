"""The in-process limit: one model called in a loop, in a process of its own, without a queue.

`benchmarks.models` starts `python -m benchmarks.models.loop CONFIG MODEL CORES DEVICE` in the environment of a slot's child.
The loop loads the model like the child, with the same cores and threads, prints that it is ready, and then answers each line of
its input with a line of JSON. All commands run whole batches until the time is over:

`stages SECONDS` runs preprocess, inference and postprocess in one thread, with the model's calls one after another.
`parallel SECONDS` does the same with the calls as the worker makes them (in parallel, if there are several threads).
`inference SECONDS` runs only inference, on preprocessed batches, with the calls as the worker makes them. No overlap of stages
can be faster.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import msgspec

from benchmarks.models.inputs import inputs
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded, Stage
from penstock.model_spec import ModelSpec
from penstock.settings.tables import Settings
from penstock.workers.child.calls.run import Calls


class LoopCount(msgspec.Struct):
    """`cpu_s`: CPU seconds of all threads."""

    items: int
    seconds: float
    cpu_s: float


class Loop:
    """Repeats the inputs of the load generator in order."""

    def __init__(self, loaded: Loaded, kind: str, batch: int) -> None:
        self._loaded = loaded
        self._calls = Calls(loaded)
        self._batch = batch
        self._inputs = [loaded.codec.decode(body.content_type, body.data) for body in inputs(kind)]

    def stages(self, seconds: float) -> LoopCount:
        with one_call_at_a_time(self._loaded.handler):
            return self.parallel(seconds)

    def parallel(self, seconds: float) -> LoopCount:
        batches = self._batches()
        return self._until(seconds, lambda: self._turn(next(batches)))

    def inference(self, seconds: float) -> LoopCount:
        ready = itertools.cycle([_through(self._loaded.preprocess, batch) for batch in self._round()])
        return self._until(seconds, lambda: self._calls.outputs(next(ready)))

    def _turn(self, batch: list[Any]) -> None:
        outputs = self._calls.outputs(_through(self._loaded.preprocess, batch))
        _through(self._loaded.postprocess, outputs)

    def _until(self, seconds: float, work: Callable[[], object]) -> LoopCount:
        count, began, cpu_s, now = 0, time.perf_counter(), time.process_time(), 0.0
        while now < seconds:
            work()
            count += self._batch
            now = time.perf_counter() - began
        return LoopCount(count, now, time.process_time() - cpu_s)

    def _batches(self) -> Iterator[list[Any]]:
        endless = itertools.cycle(self._inputs)
        while True:
            yield list(itertools.islice(endless, self._batch))

    def _round(self) -> list[list[Any]]:
        """Enough batches to hold every input once."""
        return list(itertools.islice(self._batches(), -(-len(self._inputs) // self._batch)))


@contextmanager
def one_call_at_a_time(handler: Any) -> Iterator[None]:
    """Switches off parallel calls, which penstock adds to the model and a loop without penstock lacks."""
    at_once = getattr(handler, "calls_at_once", 1)
    if at_once == 1:
        yield
        return
    handler.calls_at_once = 1
    try:
        yield
    finally:
        handler.calls_at_once = at_once


def _through(stage: Stage | None, values: list[Any]) -> list[Any]:
    return values if stage is None else list(stage(values))


def _loaded(spec: ModelSpec, device: str) -> Loaded:
    assert spec.threads is not None
    return load(
        spec.source,
        spec.name,
        device=device,
        threads=spec.threads,
        options=spec.options,
        task=spec.task,
        runtime=spec.runtime,
        max_batch_size=spec.policy.max_batch_size,
    )


def main() -> int:
    config, name, cores, device = sys.argv[1:]
    answers = _answers()
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    [spec] = [spec for spec in Settings.load(Path(config)).specs() if spec.name == name]
    loop = Loop(_loaded(spec, device), name.partition("-")[0], spec.policy.max_batch_size)
    commands = {"stages": loop.stages, "parallel": loop.parallel, "inference": loop.inference}
    for warm_up in (*commands.values(), *commands.values()):
        warm_up(0.0)
    # Like the child: the model stays until the end.
    gc.collect()
    gc.freeze()
    answers.write("ready\n")
    for line in sys.stdin:
        what, seconds = line.split()
        found = commands[what](float(seconds))
        answers.write(msgspec.json.encode(found).decode() + "\n")
    return 0


def _answers() -> TextIO:
    """The standard output, which from now on only we can write: libraries print to standard error."""
    ours = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return ours


if __name__ == "__main__":
    sys.exit(main())
