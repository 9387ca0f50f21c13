"""A real gateway process on a real store, and `Hand`, a fake worker that the test controls."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2

from penstock.broker.records import BatchStamp, Claim, ClaimedJob, ClaimRequest, Ending, Report
from penstock.broker.store.sync import RedisStore
from penstock.job import JobState, Payload
from penstock.loadtest.stack import free_port
from penstock.model_spec import ModelInfo, SlotInfo, VersionInfo, WorkerInfo
from tests.eventually import eventually
from tests.warm_process import Process, start, start_cold

SQUARE_SCHEMA = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}


class GatewayClient(httpx2.Client):
    """HTTP client of one gateway, with the process of that gateway and the address of its gRPC port, if it has one."""

    process: Process
    grpc_address = ""
    killed = False

    def kill(self) -> None:
        """As the kernel's memory killer does. The gateway is then not asked to stop at the end."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60.0)
        self.killed = True


@contextmanager
def gateway_process(redis_url: str, folder: Path, **settings: Any) -> Iterator[GatewayClient]:
    """A new gateway process, as a client of it.

    `settings` are settings of the `gateway` table, except these: `models` are the declared models, `env` are further
    environment variables, `log` is the file for the gateway's output, and `cold` asks for a start by `python -m`.
    """
    port = settings.pop("port", None) or free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env |= {
        "PENSTOCK_REDIS_URL": redis_url,
        "PENSTOCK_STORE__STATE_DIR": str(folder),
        "PENSTOCK_GATEWAY__PORT": str(port),
        "PENSTOCK_DIE_WITH_PARENT": "1",
        "PENSTOCK_MODELS": json.dumps(settings.pop("models", {})),
    }
    env |= settings.pop("env", {})
    log = settings.pop("log", sys.stderr)
    begin = start_cold if settings.pop("cold", False) else start
    env |= {f"PENSTOCK_GATEWAY__{name.upper()}": str(value) for name, value in settings.items()}
    process = begin("penstock.gateway", env=env, stdout=log, stderr=sys.stderr)
    client = GatewayClient(base_url=f"http://127.0.0.1:{port}", timeout=35.0)
    client.process = process
    client.grpc_address = f"127.0.0.1:{settings['grpc_port']}" if "grpc_port" in settings else ""
    try:
        with client:
            eventually(lambda: answers(client), timeout_s=60.0)
            yield client
    finally:
        if not client.killed:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60.0) == 0


def answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/startupz").status_code == 200
    except httpx2.TransportError:
        return False


class Hand:
    """A fake worker of one model: it announces the model, claims jobs and settles them when the test says so."""

    def __init__(self, redis_url: str, model: str = "square", *, version: str = "1") -> None:
        self._url = redis_url
        self.store = RedisStore(redis_url)
        self.model = model
        self.version = version
        self.name = f"hand-{model}"
        self._stop = threading.Event()

    def announce(
        self, info: VersionInfo | None = None, *, latency_s: dict[int, float] | None = None, state: str = "ready"
    ) -> None:
        announced = info or VersionInfo(input_schema=SQUARE_SCHEMA, accepts=("application/json", "image/*"))
        self.store.announce_model(ModelInfo(self.model, self.version, versions={self.version: announced}))
        slot = SlotInfo(self.model, self.version, state, latency_s=latency_s or {})
        self.store.announce_worker(WorkerInfo(self.name, "here", os.getpid(), 0.0, (slot,)))

    def claim(self, limit: int = 64) -> Claim:
        return self.store.claim(ClaimRequest(self.model, self.version, self.name, os.urandom(6).hex(), limit))

    def take(self) -> ClaimedJob:
        """Waits for one job and claims it."""
        return eventually(lambda: self.claim(1).jobs)[0]

    def report(self, job: ClaimedJob, fraction: float, note: str = "") -> None:
        self.store.report([Report(job.id, job.token, fraction, note)])

    def say(self, job: ClaimedJob, *chunks: Any, before: int = 0) -> None:
        """Chunks of the job's stream, of which it has `before` already."""
        said = tuple(json.dumps(chunk).encode() for chunk in chunks)
        self.store.report([Report(job.id, job.token, before=before, chunks=said)])

    def finish(self, job: ClaimedJob, output: bytes = b'{"y":16}', *, media: str = "application/json") -> None:
        self._settle(Ending(job.id, job.token, JobState.SUCCEEDED, Payload(media, output)))

    def fail(self, job: ClaimedJob, code: str, message: str) -> None:
        self._settle(Ending(job.id, job.token, JobState.FAILED, error_code=code, error_message=message))

    def _settle(self, ending: Ending) -> None:
        stamp = BatchStamp("b1", 1, "idle", inference_s=0.001)
        self.store.finish([ending], worker=self.name, stamp=stamp)

    @contextmanager
    def serving(self, output: bytes = b'{"y":16}', *, media: str = "application/json") -> Iterator[Hand]:
        """Answers every job with `output`, in a background thread, until the block ends."""
        thread = threading.Thread(target=self._serve, args=(output, media), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(5.0)
            self._stop.clear()

    def _serve(self, output: bytes, media: str) -> None:
        # A store is for one thread alone, and the test goes on using this hand's.
        other = Hand(self._url, self.model, version=self.version)
        with closing(other.store):
            while not self._stop.wait(0.002):
                for job in other.claim().jobs:
                    other.finish(job, output, media=media)
