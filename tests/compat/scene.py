"""One store, the gateways, workers and runners of two trees on it, and callers who count what they lose."""

from __future__ import annotations

import base64
import itertools
import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx2

from penstock.broker.store.sync import RedisStore
from penstock.client.sync import Client
from penstock.embedded.server import EmbeddedServer
from penstock.loadtest.stack import free_port
from tests.compat.tree import PYTHON, Tree
from tests.eventually import eventually
from tests.webhook_receiver import Receiver, receiver

_HANDLERS = Path(__file__).with_name("traced.py")
MODELS = {"traced": {"source": f"{_HANDLERS}:Traced"}, "tell": {"source": f"{_HANDLERS}:tell"}}
SUBMIT_EVERY_S = 0.04
RUN_ROWS = 6_000
CHUNKS = 20


@dataclass
class Part:
    """One process of a tree. `port`: of a gateway."""

    kind: str
    tree: Tree
    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60.0) == 0, self.said()

    def said(self) -> str:
        return self.log.read_text("utf-8", "replace")[-3_000:]


class Scene:
    """What is started here ends with the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trace, self.gate = folder / "trace", folder / "gate"
        self._opened, self._numbers = ExitStack(), itertools.count()

    def __enter__(self) -> Self:
        for name in ("open", "logs"):
            (self.folder / name).mkdir(parents=True)
        self.server = self._opened.enter_context(EmbeddedServer(self.folder / "store", fsync="everysec"))
        self.hooks: Receiver = self._opened.enter_context(receiver())
        self.store = self._opened.enter_context(closing(RedisStore(self.server.url)))
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def start(self, kind: str, tree: Tree) -> Part:
        """Start `kind`: gateway, worker or runner."""
        module = {"gateway": "penstock.gateway", "worker": "penstock.workers", "runner": "penstock.runs"}[kind]
        log, port = self.folder / "logs" / f"{kind}-{next(self._numbers)}.log", free_port()
        with log.open("wb") as out:
            command, env = [PYTHON, "-m", module], self._env(tree, port)
            process = subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=self.folder, start_new_session=True)
        self._opened.callback(_end, process)
        return Part(kind, tree, process, log, port)

    def _env(self, tree: Tree, port: int) -> dict[str, str]:
        return tree.env | {
            "PENSTOCK_REDIS_URL": self.server.url,
            "PENSTOCK_STORE__STATE_DIR": str(self.folder / "state"),
            "PENSTOCK_MODELS": json.dumps(MODELS),
            "PENSTOCK_GATEWAY__PORT": str(port),
            "PENSTOCK_GATEWAY__DRAIN_S": "0.5",
            "PENSTOCK_DIE_WITH_PARENT": "1",
            "PENSTOCK_RUNS__ROOTS": str(self.folder / "open"),
            "PENSTOCK_WEBHOOKS__SIGNING_KEYS": "whsec_" + base64.b64encode(bytes(32)).decode(),
            "PENSTOCK_WEBHOOKS__URLS": self.hooks.url,
        }

    def await_ready(self, part: Part) -> Part:
        eventually(partial(self.is_ready, part), timeout_s=60.0)
        return part

    def is_ready(self, part: Part) -> bool:
        if part.process.poll() is not None:
            raise RuntimeError(f"the {part.kind} of {part.tree.name} ended: {part.said()}")
        if part.kind == "worker":
            slots = [slot.state for one in self.store.workers() if one.pid == part.process.pid for slot in one.slots]
            return slots == ["ready"] * len(MODELS)
        try:
            return part.kind == "runner" or httpx2.get(f"{part.url}/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def runs_of(self) -> Counter[str]:
        """How often each tag has begun to run."""
        return Counter(self.trace.read_text().splitlines()) if self.trace.exists() else Counter()


@dataclass
class Callers:
    """Callers behind a proxy that knows the gateways in `urls`. They submit all the time, and repeat what was not answered."""

    scene: Scene
    urls: list[str] = field(default_factory=list)
    jobs: dict[str, str] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    streams: list[bool] = field(default_factory=list)
    run: str = ""

    @contextmanager
    def calling(self) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._call, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _call(self, ended: threading.Event) -> None:
        with httpx2.Client(timeout=30.0) as http:
            for number in itertools.count():
                if ended.wait(SUBMIT_EVERY_S):
                    return
                order, query = {"tag": f"job-{number}", "trace": str(self.scene.trace)}, ""
                if number % 10 == 3:
                    query = f"?delay_s={1 + number % 8}"
                elif number % 10 == 6:
                    query = f"?webhook={self.scene.hooks.url}"
                if number % 10 == 9:
                    self._insist(http, "/predictions/traced", order, 200)
                else:
                    answer = self._insist(http, f"/v1/models/traced/jobs{query}", order, 202)
                    self.jobs[answer["id"]] = query[1:8]

    def _insist(self, http: httpx2.Client, path: str, order: Mapping[str, Any], wanted: int) -> Any:
        """Repeat the call under one key until it is answered; count each other answer."""
        for turn in itertools.count(len(self.jobs)):
            try:
                url = self.urls[turn % len(self.urls)]
                answer = http.post(url + path, json=order, headers={"idempotency-key": order["tag"]})
            except httpx2.TransportError as broken:
                self.answers[type(broken).__name__] += 1
                continue
            self.answers[str(answer.status_code)] += 1
            if answer.status_code == wanted:
                return answer.json()
            if answer.status_code != 503:
                raise AssertionError(f"{answer.status_code} {answer.text}")
            time.sleep(0.1)
        raise AssertionError("unreachable")

    def start_run(self) -> None:
        """A run whose rows take their time until the gate opens."""
        rows = self.scene.folder / "open" / "rows.jsonl"
        order = {"trace": str(self.scene.trace), "until": str(self.scene.gate)}
        rows.write_text("".join(json.dumps(order | {"tag": f"row-{row}"}) + "\n" for row in range(RUN_ROWS)))
        answer = httpx2.post(f"{self.urls[0]}/v1/runs", json={"model": "traced", "input": str(rows)})
        assert answer.status_code == 202, answer.text
        self.run = answer.json()["id"]

    def run_status(self) -> str:
        return str(self._read_run()["status"])

    def rows_done(self) -> int:
        return int(self._read_run()["progress"]["done"])

    def await_run(self) -> None:
        """Wait for the run's end, which must be a good one."""
        eventually(lambda: self.run_status() in ("completed", "failed", "cancelled", "expired"), timeout_s=60.0)
        assert (self.run_status(), self.rows_done()) == ("completed", RUN_ROWS), self._read_run()

    def _read_run(self) -> dict[str, Any]:
        return dict(httpx2.get(f"{self.urls[0]}/v1/runs/{self.run}").json())

    @contextmanager
    def holding(self) -> Iterator[str]:
        """A job that a worker holds within the block. It then ends well, and has run once."""
        door = self.scene.folder / "door"
        order = {"tag": "held", "trace": str(self.scene.trace), "held": str(door)}
        job = str(httpx2.post(f"{self.urls[0]}/v1/models/traced/jobs", json=order).json()["id"])
        eventually(lambda: self.scene.runs_of()["held"], timeout_s=60.0)
        yield job
        door.touch()
        eventually(lambda: self.status_of(job) not in ("queued", "running"), timeout_s=60.0)
        assert (self.status_of(job), self.scene.runs_of()["held"]) == ("succeeded", 1)

    def status_of(self, job: str) -> str:
        return str(httpx2.get(f"{self.urls[0]}/v1/jobs/{job}").json().get("status"))

    @contextmanager
    def streaming(self, url: str) -> Iterator[None]:
        """A stream that is under way while the block runs; afterwards it must have been whole."""
        begun, chunks = threading.Event(), list[Any]()

        def read() -> None:
            order = {"tag": f"stream-{len(self.streams)}", "trace": str(self.scene.trace), "count": CHUNKS}
            with closing(Client(url)) as client:
                for chunk in client.stream("tell", order):
                    chunks.append(chunk)
                    begun.set()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        assert begun.wait(30.0), "no chunk came"
        try:
            yield
        finally:
            thread.join(30.0)
            self.streams.append(chunks == [str(number) for number in range(CHUNKS)])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
