"""Slots that follow the work: a burst of a minute at three times what one slot does, and two models that share one device.

`python -m benchmarks.scale.autoscale [--quick] [--picture PATH]` prints figures and their detail as JSON;
`python -m benchmarks.scale --only autoscale` writes them beside those of the other drills. A whole run draws the burst in docs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec

from benchmarks.scale.autoscale_picture import draw
from benchmarks.scale.drill import DrillResult, DrillSetting
from penstock.broker.store.sync import RedisStore
from penstock.client.handles.job_handle import JobHandle
from penstock.client.sync import Client
from penstock.embedded.server import EmbeddedServer
from penstock.loadtest.stack import Processes, await_ready, free_port, running

PICTURE = Path("docs/images/autoscale.svg")
LOAD_S, JOB_S = 1.5, 0.1
# It takes a while to load and a tenth of a second per job, and uses no core meanwhile.
SLOW_TO_LOAD = f"""
import time
import penstock

class SlowToLoad(penstock.Handler):
    sample = 1

    def initialize(self, context):
        time.sleep({LOAD_S})

    def inference(self, batch):
        time.sleep({JOB_S} * len(batch))
        return batch
"""
MIB = 1 << 20
GOAL_S, MOST_SLOTS, TIMES_CAPACITY = 5.0, 4, 3.0
# Of the second half: jobs of each model, one after the other.
PAIR, ALTERNATE_S = ("left", "right"), 1.0
# After a burst: until its jobs have run and its slots have left.
_CALM_S = 90.0
_SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class QueueSample:
    """What `/v1/queues` said `at` seconds after the beginning."""

    at: float
    backlog_s: float
    waiting: int
    ready: int
    wanted: int


@dataclass(slots=True)
class Watched:
    """Samples of one model's queue, taken in a thread of their own."""

    url: str
    model: str
    began: float
    samples: list[QueueSample] = field(default_factory=list)
    is_over: bool = False

    def run(self) -> None:
        while not self.is_over:
            with urlopen(f"{self.url}/v1/queues/{self.model}", timeout=10.0) as answer:
                queue = msgspec.json.decode(answer.read())
            backlog_s = queue["backlog_s"] or 0.0
            at = time.monotonic() - self.began
            self.samples.append(QueueSample(at, backlog_s, queue["depth"], queue["ready_slots"], queue["wanted_slots"]))
            time.sleep(_SAMPLE_S)


@dataclass(slots=True)
class ScalingStack:
    url: str
    client: Client
    store: RedisStore
    log: Path

    def changes(self, *models: str) -> list[dict[str, Any]]:
        """Each change of a number of slots, as the worker logged it."""
        lines = (line for line in self.log.read_text(errors="replace").splitlines() if '"slots_scaled"' in line)
        found = [msgspec.json.decode(line[line.index("{") :]) for line in lines]
        return [entry for entry in found if entry["model"] in models]

    def redelivered(self, model: str) -> int:
        """Leased jobs that went back into the queue: none does if no slot that ran something was ended."""
        counters = self.store.stats(model).counters
        return sum(count for name, count in counters.items() if name.startswith("redelivered:"))


def measure(setting: DrillSetting) -> DrillResult:
    with _stack(setting.folder) as stack:
        burst = _burst(stack, seconds=15.0 if setting.quick else 60.0, say=setting.say)
        pair = _alternate(stack, seconds=45.0 if setting.quick else 240.0, say=setting.say)
    if not setting.quick and PICTURE.parent.is_dir():
        PICTURE.write_text(draw(burst))
    figures = {
        "autoscale_late_s": burst["late_s"],
        "autoscale_slots_after": burst["slots_after"],
        "autoscale_lost": burst["lost"] + pair["lost"],
        "autoscale_redelivered": burst["redelivered"] + pair["redelivered"],
        "autoscale_loads_per_minute": pair["loads_per_minute"],
    }
    return DrillResult(figures, {"burst": burst, "pair": pair})


# A burst.


def _burst(stack: ScalingStack, *, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    per_s = TIMES_CAPACITY / JOB_S
    watched = Watched(stack.url, "burst", time.monotonic())
    watcher = threading.Thread(target=watched.run, daemon=True)
    watcher.start()
    jobs = list(_paced(lambda number: stack.client.submit("burst", number), per_s, seconds))
    say(f"{len(jobs)} jobs sent in {seconds:.0f} s, {TIMES_CAPACITY:g} times what one slot does")
    ended = [job.result(120.0) for job in jobs]
    calm_at = time.monotonic() + _CALM_S
    while watched.samples[-1].ready > 1 and time.monotonic() < calm_at:
        time.sleep(_SAMPLE_S)
    watched.is_over = True
    watcher.join()
    start_s = float(stack.client.model("burst")["versions"]["1"]["scaling"]["start_s"])
    late_s = _late_s(watched.samples, start_s)
    most = max(sample.ready for sample in watched.samples)
    say(f"slots from 1 to {most} and back, the first {late_s:.1f} s after its load time")
    return {
        "late_s": late_s,
        "start_s": start_s,
        "slots_after": watched.samples[-1].ready,
        "most_slots": most,
        "most_backlog_s": max(sample.backlog_s for sample in watched.samples),
        "jobs": len(jobs),
        "lost": len(jobs) - len(ended),
        "redelivered": stack.redelivered("burst"),
        "burst_s": seconds,
        "goal_s": GOAL_S,
        "changes": [[entry["slots"], entry["reason"]] for entry in stack.changes("burst")],
        "samples": [[round(s.at, 1), round(s.backlog_s, 2), s.ready] for s in watched.samples],
    }


def _late_s(samples: list[QueueSample], start_s: float) -> float:
    """From when the backlog passed the goal until a second slot was ready, less the time that a slot takes to start."""
    passed = next((sample.at for sample in samples if sample.backlog_s > GOAL_S), None)
    up = next((sample.at for sample in samples if sample.ready > 1), None)
    return float("inf") if passed is None or up is None else up - passed - start_s


def _paced(call: Callable[[int], JobHandle], per_s: float, seconds: float) -> Iterator[JobHandle]:
    began = time.monotonic()
    for number in range(int(per_s * seconds)):
        time.sleep(max(0.0, began + number / per_s - time.monotonic()))
        yield call(number)


# Two models with room for one.


def _alternate(stack: ScalingStack, *, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    jobs = list(_paced(lambda number: stack.client.submit(PAIR[number % 2], number), 1.0 / ALTERNATE_S, seconds))
    ended = [job.result(180.0) for job in jobs]
    changes = stack.changes(*PAIR)
    loads = [_at(entry) for entry in changes if entry["slots"] > entry["before"]]
    most = max((sum(start <= at < start + 60.0 for at in loads) for start in loads), default=0)
    say(f"{len(loads)} loads in {seconds:.0f} s of alternating jobs, at most {most} within a minute")
    return {
        "loads_per_minute": most,
        "loads": len(loads),
        "seconds": seconds,
        "jobs": len(jobs),
        "lost": len(jobs) - len(ended),
        "redelivered": sum(stack.redelivered(model) for model in PAIR),
        "changes": [[entry["model"], entry["slots"], entry["reason"]] for entry in changes],
    }


def _at(entry: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(entry["timestamp"]).timestamp()


@contextmanager
def _stack(folder: Path) -> Iterator[ScalingStack]:
    port = free_port()
    with EmbeddedServer(folder / "store") as server:
        (folder / "slow.py").write_text(SLOW_TO_LOAD)
        (folder / "penstock.toml").write_text("\n".join(_settings(folder, port)) + "\n")
        variables = {"PENSTOCK_CONFIG": str(folder / "penstock.toml"), "PENSTOCK_REDIS_URL": server.url}
        processes = Processes(folder, variables)
        with (
            running(processes, [["gateway"], ["worker"]]),
            closing(Client(f"http://127.0.0.1:{port}")) as client,
            closing(RedisStore(server.url)) as store,
        ):
            await_ready(port, processes, path="/readyz")
            yield ScalingStack(f"http://127.0.0.1:{port}", client, store, folder / "stack.log")


def _settings(folder: Path, port: int) -> list[str]:
    model = [f'source = "{folder / "slow.py"}"', "max_batch_size = 1", "threads = 1"]
    lines = ["[store]", f'state_dir = "{folder / "state"}"', "[gateway]", f"port = {port}"]
    lines += ["[worker]", f"memory_bytes = {1_000 * MIB}", 'pinning = "none"']
    lines += ["[models.burst]", *model, f"max_slots = {MOST_SLOTS}", f"backlog_goal_s = {GOAL_S}"]
    for name in PAIR:
        lines += [f"[models.{name}]", *model, "idle_unload_s = 600.0", f"device_memory_bytes = {500 * MIB}"]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.autoscale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the time")
    parser.add_argument("--picture", type=Path, help="where the burst is drawn too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-autoscale-") as folder:
        result = measure(DrillSetting(Path(folder), options.quick, lambda line: print(line, file=sys.stderr)))
    if options.picture:
        options.picture.write_text(draw(result.detail["burst"]))
    print(msgspec.json.format(msgspec.json.encode({"figures": result.figures, "detail": result.detail}), indent=2).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
