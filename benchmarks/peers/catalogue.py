"""The servers that are compared, and the form of their requests and answers. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.workloads import EMBEDDINGS
from penstock.errors import BadRequest

OWN = "penstock"


def _as_is(workload: str, value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class ComparedServer:
    """`name` is the server's folder; the version reported is that of `package`. `wrap` makes a request of an input, `unwrap`
    takes the output from an answer. `settings` says in words what is set besides batch size and wait, as in docs/peers.md.
    `batches`: the server can run several requests in one call. `commands` must be on the path.
    """

    name: str
    title: str
    package: str
    path: str
    settings: str
    durable: bool = False
    batches: bool = True
    wrap: Callable[[str, Any], Any] = _as_is
    unwrap: Callable[[str, Any], Any] = _as_is
    commands: tuple[str, ...] = ()


def _in_list(workload: str, item: Any) -> Any:
    return {"items": [item]}


def _only(workload: str, answer: Any) -> Any:
    return answer[0]


def _text_alone(workload: str, item: Any) -> Any:
    return item["text"] if workload == EMBEDDINGS else item


def _vector_alone(workload: str, answer: Any) -> Any:
    return {"embedding": answer} if workload == EMBEDDINGS else answer


PEERS = (
    ComparedServer(
        OWN,
        "penstock",
        "penstock",
        "/predictions/peer",
        "`penstock up`, one worker, the wait left to the policy",
        durable=True,
        wrap=_text_alone,
        unwrap=_vector_alone,
    ),
    ComparedServer("mosec", "Mosec", "mosec", "/inference", "one stage of one worker"),
    ComparedServer(
        "torchserve",
        "TorchServe",
        "torchserve",
        "/predictions/peer",
        "one worker, `batchSize`, `maxBatchDelay`, `job_queue_size=1000`, without its token check; Java 17",
        commands=("java",),
    ),
    ComparedServer(
        "litserve", "LitServe", "litserve", "/predict", "one worker, `max_batch_size`, `batch_timeout`, `fast_queue=True`"
    ),
    ComparedServer(
        "bentoml",
        "BentoML",
        "bentoml",
        "/predict",
        "one worker, `batchable`, its adaptive wait, `max_latency_ms=60000`, so that nothing is refused",
        wrap=_in_list,
        unwrap=_only,
    ),
    ComparedServer(
        "ray",
        "Ray Serve",
        "ray",
        "/",
        "one replica, `@serve.batch`, `max_ongoing_requests=256`, `RAY_SERVE_THROUGHPUT_OPTIMIZED=1`",
    ),
    ComparedServer(
        "celery",
        "Celery + FastAPI",
        "celery",
        "/predict",
        "a task per request, pool `solo`, store in memory, uvicorn with uvloop, `get()` on one of 128 threads",
        batches=False,
    ),
)


def peers_named(names: str) -> list[ComparedServer]:
    """The servers of a comma-separated list, in the table's order. Raises `BadRequest` for an unknown name."""
    known = {peer.name for peer in PEERS}
    wanted = known if names in ("", "all") else {name.strip() for name in names.split(",")}
    if unknown := sorted(wanted - known):
        raise BadRequest(f"no such peer: {', '.join(unknown)}; there are {', '.join(peer.name for peer in PEERS)}")
    return [peer for peer in PEERS if peer.name in wanted]
