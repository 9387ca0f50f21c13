"""The cost of one job in the store: commands run by the functions, and CPU time of the server, without workers or HTTP.

`python -m benchmarks.experiments.store_cost [--batch 64] [--jobs 19200] [--owner NAME] [--output BYTES]`; run it before and
after a change to the functions. The commands are exact; the microseconds depend on the machine.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from penstock.broker.records import BatchStamp, Claim, ClaimRequest, Ending, NewJob
from penstock.broker.store.connection import connect
from penstock.broker.store.sync import RedisStore
from penstock.embedded.server import EmbeddedServer
from penstock.job import JobState, Payload, new_job_id

_WORKER = "cost"


class StoreMeter:
    """Measures commands, CPU time and wall time of one server per job."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._process = psutil.Process(server.pid or 0)
        self._redis = connect(server.url)
        self._cpu_s = self._wall_s = 0.0
        self._commands = 0

    def start(self) -> None:
        self._commands, self._cpu_s, self._wall_s = self._run(), self._used_s(), time.perf_counter()

    def report(self, what: str, jobs: int) -> None:
        cpu_s, wall_s = self._used_s() - self._cpu_s, time.perf_counter() - self._wall_s
        used = f"{(self._run() - self._commands) / jobs:.2f} commands, server CPU {cpu_s / jobs * 1e6:.1f} us"
        print(f"{what + ':':<15} {used}, wall {wall_s / jobs * 1e6:.1f} us per job")

    def _run(self) -> int:
        """The commands so far, also those that functions run, but without INFO and the calls of functions."""
        stats: dict[str, Any] = dict(self._redis.info("commandstats"))
        return sum(entry["calls"] for name, entry in stats.items() if name not in ("cmdstat_info", "cmdstat_fcall"))

    def _used_s(self) -> float:
        used = self._process.cpu_times()
        return float(used.user + used.system)


def _new(count: int, owner: str) -> list[NewJob]:
    """New jobs that a gateway's request waits for."""
    payload = Payload("application/json", b"x" * 100)
    return [NewJob(new_job_id("cost"), "1", payload, owner=owner, reply_to="cost") for _ in range(count)]


def _ask(batch: int) -> ClaimRequest:
    return ClaimRequest("cost", "1", _WORKER, secrets.token_hex(8), batch)


def _drain(store: RedisStore, batch: int, output: Payload) -> int:
    """Claims and finishes until the queue is empty; the number of jobs."""
    done, claim = 0, store.claim(_ask(batch))
    while claim.jobs:
        done += len(claim.jobs)
        claim = _next(store, claim, batch, output)
    return done


def _next(store: RedisStore, claim: Claim, batch: int, output: Payload) -> Claim:
    endings = [Ending(job.id, job.token, JobState.SUCCEEDED, output) for job in claim.jobs]
    stamp = BatchStamp(claim.jobs[0].token[-16:], len(endings), claim.reason)
    taken = store.finish_all([(endings, _WORKER, stamp)], _ask(batch))[1]
    assert taken is not None
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=19_200)
    parser.add_argument("--owner", default="", help="the owner of the jobs (default: none)")
    parser.add_argument("--output", type=int, default=1, metavar="BYTES", help="size of each answer (an embedding has 4,700)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder)) as server:
        store, meter = RedisStore(server.url), StoreMeter(server)
        groups = [_new(args.batch, args.owner) for _ in range(args.jobs // args.batch)]
        meter.start()
        for group in groups:
            store.submit(group, max_depth=args.jobs + 1)
        meter.report("submit", args.jobs)
        meter.start()
        meter.report("claim + finish", _drain(store, args.batch, Payload("application/json", b"1" * args.output)))
        store.close()


if __name__ == "__main__":
    main()
