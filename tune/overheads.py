"""The cost of penstock itself on this machine, measured with a model that does nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from penstock.broker.records import ClaimRequest
from penstock.broker.store.sync import RedisStore
from penstock.embedded.server import EmbeddedServer
from penstock.errors import PenstockError
from penstock.loadtest.generator.connection import RequestBody
from penstock.tune.result import Goal, Overheads
from penstock.tune.trial_stack import TrialStack, started_stack

_ECHO = "penstock.tune.measuring.echo:Echo"
_CLAIMS = 200
_LONE_RPS = 40.0
_CONCURRENCY = 32
_STAGES = ("preprocess", "inference", "postprocess")


def measure_overheads(folder: Path, *, seconds: float) -> Overheads:
    """From an empty claim, a lone request to a model that does nothing, and its throughput with and without batches."""
    claim_s = _claim_s(folder / "claims")
    goal = Goal(limit_s=10.0)
    body = (RequestBody(b'{"x": 1}', "application/json"),)
    sizes = {"batched": 64, "single": 1}
    models = {name: {"source": _ECHO, "max_batch_size": size} for name, size in sizes.items()}
    with started_stack(folder / "noop", models, pinning="none") as (url, processes):
        lone = TrialStack("single", url, processes, body).offer(_LONE_RPS, goal, seconds=seconds, warm_up_s=0.5, seed=1)
        rates = {
            name: TrialStack(name, url, processes, body).saturate(goal, concurrency=_CONCURRENCY, seconds=seconds)
            for name in sizes
        }
    request_s_of = {name: 1.0 / probed.figures.throughput_rps for name, probed in rates.items() if probed.figures}
    if lone.figures is None or len(request_s_of) < len(sizes):
        raise PenstockError(f"the cost of penstock itself could not be measured: {lone.why or rates}")
    inside_s = sum(lone.stages_ms.get(stage, 0.0) for stage in _STAGES) / 1e3
    feed_s = claim_s / 2
    request_s = max(0.0, lone.figures.p50_ms / 1e3 - inside_s - claim_s - feed_s)
    batch_s = max(0.0, request_s_of["single"] - request_s_of["batched"])
    return Overheads(claim_s, feed_s, request_s, per_item_s=request_s_of["batched"], per_batch_s=batch_s)


def _claim_s(folder: Path) -> float:
    """The median time of a claim that finds no jobs."""
    folder.mkdir(parents=True)
    request = ClaimRequest("noop", "1", "tune", "0", limit=1, enough=1, lease_s=10.0)
    with EmbeddedServer(folder) as server:
        store = RedisStore(server.url)
        try:
            return _median_s(store, request)
        finally:
            store.close()


def _median_s(store: RedisStore, request: ClaimRequest) -> float:
    took = []
    for number in range(_CLAIMS):
        began = time.perf_counter()
        store.claim(replace(request, nonce=str(number)))
        took.append(time.perf_counter() - began)
    return sorted(took)[len(took) // 2]
