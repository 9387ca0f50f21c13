"""The servers that are compared, and the form of their requests and answers. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.workloads import ACCELERATOR, EMBEDDINGS, NOOP, WORKLOADS, Workload, workloads_named
from penstock.errors import BadRequest

OWN = "penstock"
# Penstock with a handler of a user's own on the embeddings, where `OWN` runs its built-in task.
OWN_COST, OWN_PLAIN = "penstock-cost", "penstock-plain"
OWN_NAMES = (OWN, OWN_COST, OWN_PLAIN)
# Of servers that take JSON or forms only.
_JSON = (NOOP, ACCELERATOR, EMBEDDINGS)


def _as_is(workload: str, value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class ComparedServer:
    """`name` is the folder of its environment, `package` that of its definition, whose version is reported. `wrap` makes a
    request of an input, `unwrap` takes the output from an answer. `settings` says in words what is set besides batch size and
    wait, `source` where the server's documentation recommends it, both as in docs/why/peers.md. `batches`: the server can run
    several requests in one call. `learns`: while it runs, it finds out what calls take, so it is warmed up for longer where
    inputs are uneven. `workloads`: empty for all. `commands` must be on the path.
    """

    name: str
    title: str
    package: str
    path: str
    settings: str
    source: str
    durable: bool = False
    batches: bool = True
    learns: bool = False
    workloads: tuple[str, ...] = ()
    wrap: Callable[[str, Any], Any] = _as_is
    unwrap: Callable[[str, Any], Any] = _as_is
    commands: tuple[str, ...] = ()

    @property
    def is_own(self) -> bool:
        return self.package == OWN

    def takes_part(self, workload: str) -> bool:
        return not self.workloads or workload in self.workloads


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
        "`penstock up`, one worker, the largest batch; wait and size left to the policy; embeddings by its task",
        "[workers.md](../reference/workers.md)",
        durable=True,
        learns=True,
        wrap=_text_alone,
        unwrap=_vector_alone,
    ),
    ComparedServer(
        OWN_COST,
        "penstock, own handler, `cost`",
        OWN,
        "/predictions/peer",
        "the same with a handler that declares what a text costs",
        "[handlers.md](../reference/handlers.md)",
        durable=True,
        learns=True,
        workloads=(EMBEDDINGS,),
    ),
    ComparedServer(
        OWN_PLAIN,
        "penstock, own handler",
        OWN,
        "/predictions/peer",
        "the same with a handler that declares nothing",
        "[handlers.md](../reference/handlers.md)",
        durable=True,
        learns=True,
        workloads=(EMBEDDINGS,),
    ),
    ComparedServer(
        "mosec",
        "Mosec",
        "mosec",
        "/inference",
        "one stage of one worker, `max_batch_size`, `max_wait_time`",
        "[concepts](https://mosecorg.github.io/mosec/reference/concept.html)",
    ),
    ComparedServer(
        "torchserve",
        "TorchServe",
        "torchserve",
        "/predictions/peer",
        "one worker, `batchSize`, `maxBatchDelay`, `job_queue_size=1000`, without its token check; Java 17",
        "[batching](https://pytorch.org/serve/batch_inference_with_ts.html), "
        "[performance](https://pytorch.org/serve/performance_guide.html)",
        commands=("java",),
    ),
    ComparedServer(
        "litserve",
        "LitServe",
        "litserve",
        "/predict",
        "one worker, `max_batch_size`, `batch_timeout`, `fast_queue=True`",
        "[batching](https://lightning.ai/docs/litserve/features/batching), the docstring of `LitServer`",
        workloads=_JSON,
    ),
    ComparedServer(
        "bentoml",
        "BentoML",
        "bentoml",
        "/predict",
        "one worker, `batchable`, its adaptive wait, `max_latency_ms=60000`, so that nothing is refused",
        "[adaptive batching](https://docs.bentoml.com/en/latest/get-started/adaptive-batching.html)",
        learns=True,
        workloads=_JSON,
        wrap=_in_list,
        unwrap=_only,
    ),
    ComparedServer(
        "ray",
        "Ray Serve",
        "ray",
        "/",
        "one replica, `@serve.batch`, `max_ongoing_requests=256`, `RAY_SERVE_ENABLE_HA_PROXY=1`, "
        "`RAY_SERVE_THROUGHPUT_OPTIMIZED=1`",
        "[performance](https://docs.ray.io/en/latest/serve/advanced-guides/performance.html), "
        "[high throughput](https://docs.ray.io/en/master/kuberay/user-guides/serve-high-throughput.html)",
    ),
    ComparedServer(
        "celery",
        "Celery + FastAPI",
        "celery",
        "/predict",
        "a task per request, pool `solo`, store in memory, uvicorn with uvloop, `get()` on one of 128 threads",
        "[optimizing](https://docs.celeryq.dev/en/stable/userguide/optimizing.html)",
        batches=False,
        workloads=_JSON,
    ),
)


def peers_named(names: str) -> list[ComparedServer]:
    """The servers of a comma-separated list, in the table's order. Raises `BadRequest` for an unknown name."""
    known = {peer.name for peer in PEERS}
    wanted = known if names in ("", "all") else {name.strip() for name in names.split(",")}
    if unknown := sorted(wanted - known):
        raise BadRequest(f"no such peer: {', '.join(unknown)}; there are {', '.join(peer.name for peer in PEERS)}")
    return [peer for peer in PEERS if peer.name in wanted]


def chosen(names: str) -> tuple[list[ComparedServer], list[Workload]]:
    """What a comma-separated list of servers and workloads names; all servers or all workloads where it names none of them."""
    listed = [name.strip() for name in names.split(",") if name.strip()]
    known = {workload.name for workload in WORKLOADS}
    servers = [name for name in listed if name not in known]
    return peers_named(",".join(servers)), workloads_named(",".join(name for name in listed if name in known))
