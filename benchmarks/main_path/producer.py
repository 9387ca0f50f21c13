"""Submits jobs straight to the store, without HTTP: a steady supply for a running worker, or a queue filled in advance."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence

from penstock.broker.records import NewJob
from penstock.broker.store.connection import connect
from penstock.broker.store.sync import RedisStore
from penstock.job import JobId, Payload, new_job_id
from penstock.model_spec import DEFAULT_VERSION

NO_LIMIT = 1 << 40
_GROUP = 64
_POLL_S = 0.0005


def fill(store: RedisStore, model: str, count: int, *, data: bytes) -> Iterator[list[JobId]]:
    """Submits `count` jobs in groups of 64; yields the ids of each stored group."""
    for start in range(0, count, _GROUP):
        jobs = _group(model, min(_GROUP, count - start), data)
        store.submit(jobs, max_depth=NO_LIMIT)
        yield [job.id for job in jobs]


def _group(model: str, size: int, data: bytes) -> list[NewJob]:
    payload = Payload("application/json", data)
    return [NewJob(new_job_id(model), DEFAULT_VERSION, payload, result_ttl_s=60.0) for _ in range(size)]


def supply(url: str, model: str, *, seconds: float, keep: int, data: bytes) -> int:
    """Submits as fast as a worker claims, with at most about `keep` jobs waiting; the number of jobs."""
    store, probe, queue = RedisStore(url), connect(url), f"penstock.{{{model}}}"
    ends_at = time.monotonic() + seconds
    for group in itertools.count(1):
        depth = store.submit(_group(model, _GROUP, data), max_depth=NO_LIMIT)[-1].depth
        while depth > keep and time.monotonic() < ends_at:
            time.sleep(_POLL_S)
            depth = int(probe.llen(queue))
        if time.monotonic() >= ends_at:
            return group * _GROUP
    raise AssertionError("an endless count ended")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.main_path.producer", description=__doc__)
    parser.add_argument("url", help="the store's Redis URL")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--keep", type=int, default=2_000)
    parser.add_argument("--input", default='{"x": 4}')
    options = parser.parse_args(arguments)
    count = supply(options.url, options.model, seconds=options.seconds, keep=options.keep, data=options.input.encode())
    sys.stdout.write(f"{count}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
