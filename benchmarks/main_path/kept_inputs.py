"""How many bytes of inputs lie on the disk while jobs with large inputs run, and how many such jobs are answered in a second.

`python -m benchmarks.main_path.kept_inputs [--sizes 3000000,100000] [--rate 0] [--seconds 15]`, of a store that syncs each
write and of one that syncs once a second, whose inputs wait until their ends are safe (D141). A rate of 0 is a closed loop.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.session import check_answers, post_plan
from benchmarks.stack import StackPlan
from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.blobs.segments import parse_reference
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.generator.load import run_load
from penstock.loadtest.stack import Processes, await_ready, free_port, running

_MODEL = """
from penstock import Handler


class Size(Handler):
    max_batch_size = 8

    def inference(self, batch, /):
        return [len(text) for text in batch]
"""
_LOOK_S = 0.2
_CONNECTIONS = 4


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="3000000,100000")
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args(arguments)
    for size in map(int, options.sizes.split(",")):
        for fsync in ("always", "everysec"):
            with tempfile.TemporaryDirectory(prefix="penstock-kept-inputs-") as folder:
                plan = StackPlan(Path(folder), free_port(), fsync)
                print(f"{size} bytes, {fsync}: {measured(plan, size, rate=options.rate, seconds=options.seconds)}", flush=True)


def measured(plan: StackPlan, size: int, *, rate: float, seconds: float) -> str:
    """The figures of one load, in words."""
    source = plan.folder / "size.py"
    source.write_text(_MODEL)
    table = f'[store]\nfsync = "{plan.fsync}"\nstate_dir = "{plan.folder / "state"}"\n[gateway]\nport = {plan.port}\n'
    config = plan.folder / "penstock.toml"
    config.write_text(f'{table}[models.size]\nsource = "{source}:Size"\n')
    kept: list[int] = []
    with running(Processes(plan.folder, {"PENSTOCK_CONFIG": str(config)}), [["up", str(config)]]) as processes:
        await_ready(plan.port, processes, path="/readyz")
        body = RequestBody(b'"' + b"x" * size + b'"', "application/json")
        load = post_plan(f"{plan.url}/predictions/size", body, connections=_CONNECTIONS, duration_s=seconds)
        with looking(plan.folder / "state" / "blobs", kept):
            report = run_load(replace(load, rate=rate) if rate else load)
    check_answers(f"{size}", report)
    per_s = report.summary.rps
    mean = fmean(kept)
    return f"{per_s:.1f}/s, {mean / 1e6:.0f} MB kept, at most {max(kept) / 1e6:.0f} MB: {mean / (per_s * size):.1f} s of inputs"


@contextmanager
def looking(blobs: Path, kept: list[int]) -> Iterator[None]:
    """Note every now and then how many bytes of inputs there are."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            kept.append(sum(_size(blobs, name) for name, _ in LocalBlobs(blobs).names()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _size(blobs: Path, name: str) -> int:
    if reference := parse_reference(name):
        return reference.piece.length
    path = LocalBlobs(blobs).local_path(name)
    return path.stat().st_size if path is not None else 0


if __name__ == "__main__":
    main()
