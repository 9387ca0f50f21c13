"""`python -m benchmarks.experiments.doors`: the same tensor over each door of one gateway, in turns.

Our own route takes numpy's file format; REST and gRPC are those of the Open Inference Protocol, with binary tensors. The model
answers with its input. Writes benchmarks/results/doors.json; `--docs` writes the saved figures into the page of the protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.doors import frames
from benchmarks.experiments.doors.callers import DoorCaller, DoorReadings, GrpcCaller, HttpCaller, call_for
from benchmarks.experiments.doors.report import RESULTS, write_page
from penstock.errors import PenstockError
from penstock.extensions.oip.grpc.messages import message_class
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.observed.costs import per_request_us, read_machine
from penstock.loadtest.stack import Processes, await_ready, free_port, running
from penstock.tensors.npy import npy_of_tensor
from penstock.tensors.tensor import Tensor

_MODEL = """
import penstock


class Mirror(penstock.Handler):
    accepts = ("application/json", "application/x-npy")
    max_batch_size = 64

    def inference(self, batch):
        return batch
"""
_WARM_S = 0.7
_FILE = "application/x-npy"
# Bytes of the tensor, and how many callers send it.
SIZES = {"4 KB": (4_096, 64), "600 KB": (600_000, 8)}
OWN, REST, GRPC, SHARED = "own", "oip_rest", "oip_grpc", "oip_grpc_shared"
DOORS = (OWN, REST, GRPC, SHARED)
# Callers that share a connection at the last door, as the threads of a program share their client.
_SHARING = 4


@dataclass(frozen=True, slots=True)
class DoorsStack:
    processes: Processes
    port: int
    grpc_port: int


@dataclass(slots=True)
class DoorTurn:
    """One turn of one door. `cpu_us`: per request, by stage."""

    rps: float
    p50_ms: float
    cpu_us: dict[str, float]


@contextmanager
def door_stack(folder: Path) -> Iterator[DoorsStack]:
    port, grpc_port = free_port(), free_port()
    (folder / "mirror.py").write_text(_MODEL)
    config = folder / "penstock.toml"
    config.write_text(
        f'[store]\nstate_dir = "{folder / "state"}"\n[gateway]\nport = {port}\ngrpc_port = {grpc_port}\n'
        f'[models.mirror]\nsource = "{folder / "mirror.py"}:Mirror"\nmax_queue_depth = 100000\n'
    )
    with running(Processes(folder, {"PENSTOCK_CONFIG": str(config)}), [["up", str(config)]]) as processes:
        await_ready(port, processes, path="/readyz")
        yield DoorsStack(processes, port, grpc_port)


def tensor_of(size: int) -> Tensor:
    data = np.random.default_rng(size).random(size // 4, dtype=np.float32)
    return Tensor("x", "FP32", data.shape, data.tobytes())


def own_request(port: int, tensor: Tensor) -> bytes:
    file = npy_of_tensor(tensor)
    assert file is not None
    target = parse_target(f"http://127.0.0.1:{port}/predictions/mirror")
    return request_bytes(target, method="POST", body=file, headers={"Content-Type": _FILE, "Accept": _FILE})


def rest_request(port: int, tensor: Tensor) -> bytes:
    given = {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "datatype": tensor.datatype,
        "parameters": {"binary_data_size": len(tensor.data)},
    }
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    target = parse_target(f"http://127.0.0.1:{port}/v2/models/mirror/infer")
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return request_bytes(target, method="POST", body=head + tensor.data, headers=headers)


def grpc_message(tensor: Tensor) -> bytes:
    given = {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype}
    request = message_class("ModelInferRequest")(model_name="mirror", inputs=[given], raw_input_contents=[bytes(tensor.data)])
    made: bytes = request.SerializeToString()
    return made


def caller_of(door: str, stack: DoorsStack, tensor: Tensor) -> tuple[int, Callable[[], DoorCaller]]:
    """The port of a door, and what makes one caller."""
    if door in (GRPC, SHARED):
        calls = _SHARING if door == SHARED else 1
        head = frames.call_head("/inference.GRPCInferenceService/ModelInfer")
        return stack.grpc_port, partial(GrpcCaller, head, grpc_message(tensor), calls)
    make = own_request if door == OWN else rest_request
    return stack.port, partial(HttpCaller, make(stack.port, tensor))


def turn(door: str, stack: DoorsStack, size: str, busy_s: float) -> DoorTurn:
    count, callers = SIZES[size]
    port, make = caller_of(door, stack, tensor_of(count))
    before, began = stack.processes.read_cpu(), time.perf_counter()
    seen = asyncio.run(
        call_for(port, make, callers=callers // (_SHARING if door == SHARED else 1), warm_s=_WARM_S, busy_s=busy_s)
    )
    spent = stack.processes.read_cpu().since(before)
    stack.processes.check()
    return _figures(seen, spent, busy_s=busy_s, share=busy_s / (time.perf_counter() - began))


def _figures(seen: DoorReadings, spent: Mapping[str, float], *, busy_s: float, share: float) -> DoorTurn:
    """`share`: of the CPU time that was spent while the callers were counted."""
    counted = {stage: seconds * share for stage, seconds in spent.items()}
    p50_ms = statistics.median(seen.took_s) * 1e3
    return DoorTurn(len(seen.took_s) / busy_s, p50_ms, per_request_us(counted, len(seen.took_s)))


def measure(folder: Path, *, rounds: int, busy_s: float) -> dict[str, Any]:
    """The figures of all doors and sizes. Each door goes first equally often."""
    turns: dict[tuple[str, str], list[DoorTurn]] = {(size, door): [] for size in SIZES for door in DOORS}
    with door_stack(folder) as stack:
        machine, cpu = read_machine(), stack.processes.read_cpu()
        for size in SIZES:
            for number in range(rounds):
                for place in range(len(DOORS)):
                    door = DOORS[(number + place) % len(DOORS)]
                    turns[size, door].append(turn(door, stack, size, busy_s))
                    print(f"{size} {door}: {turns[size, door][-1].rps:,.0f}/s", flush=True)
        own_s = sum(stack.processes.read_cpu().since(cpu).values())
        foreign = read_machine().foreign_share(machine, own_s)
    found: dict[str, Any] = {"rounds": rounds, "seconds_each": busy_s, "foreign_cpu_share": round(foreign, 3)}
    return {**found, "sizes": {size: _row(size, turns) for size in SIZES}}


def _row(size: str, turns: Mapping[tuple[str, str], Sequence[DoorTurn]]) -> dict[str, Any]:
    bytes_each, callers = SIZES[size]
    own = turns[size, OWN]
    doors = {door: _door(turns[size, door], own) for door in DOORS}
    return {"tensor_bytes": bytes_each, "callers": callers, "doors": doors}


def _door(mine: Sequence[DoorTurn], own: Sequence[DoorTurn]) -> dict[str, Any]:
    stages = sorted({stage for one in mine for stage in one.cpu_us})
    return {
        "requests_per_s": round(statistics.median(one.rps for one in mine), 1),
        "vs_own": round(statistics.median(one.rps / other.rps for one, other in zip(mine, own, strict=True)), 3),
        "p50_ms": round(statistics.median(one.p50_ms for one in mine), 2),
        "cpu_us": {stage: round(statistics.median(one.cpu_us.get(stage, 0.0) for one in mine), 1) for stage in stages},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.doors", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--docs", action="store_true", help="measure nothing; write the saved figures into the page")
    options = parser.parse_args()
    if options.docs:
        write_page()
        return
    if options.rounds < 1 or options.seconds <= 0:
        raise PenstockError("at least one round of some seconds")
    with tempfile.TemporaryDirectory(prefix="doors-") as folder:
        found = measure(Path(folder), rounds=options.rounds, busy_s=options.seconds)
    options.json.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
