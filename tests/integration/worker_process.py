"""A real worker process for tests, and a client that submits straight to the store."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from celery import Celery

from penstock.broker.records import NewJob, SubmitStatus
from penstock.broker.store.sync import RedisStore
from penstock.job import Job, JobId, Payload, new_job_id
from penstock.model_spec import Limits
from tests.eventually import eventually
from tests.warm_process import Process, start

HANDLERS = Path(__file__).resolve().parents[1] / "handlers"
FAULTY = str(HANDLERS / "faulty.py")
PACED = str(HANDLERS / "paced.py")


def await_listening(stock: Celery, name: str) -> None:
    """Wait until the worker hears remote control: its slots may be ready before that, and a broadcast then reaches nobody."""
    eventually(lambda: stock.control.inspect(destination=[name], timeout=2.0).ping(), timeout_s=60.0)


class Gate:
    """Holds the orders of `tests/handlers/paced.py` that name it, until the test opens it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def held(self, tag: object) -> dict[str, object]:
        """Return an order that lasts until the gate opens."""
        return {"tag": tag, "until": str(self._path), "slowly": False}

    def slow(self, count: int) -> list[dict[str, object]]:
        """Return orders that take 0.05 s each, and no time once the gate is open."""
        return [{"tag": tag, "until": str(self._path), "slowly": True} for tag in range(count)]

    def begun(self, process: WorkerProcess) -> int:
        """Return how many of the orders the children of this worker have begun."""
        notes = self._path.with_name(f"{self._path.name}.{process.process.pid}")
        return notes.stat().st_size if notes.exists() else 0

    def open(self) -> None:
        self._path.touch()


class WorkerProcess:
    """Runs `python -m penstock.workers` in a process group of its own. `models` and `pipelines` are tables as in penstock.toml;
    `env` are more variables. If these name a file of settings, `slots` says how many slots that is.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        models: Mapping[str, Any],
        env: Mapping[str, str] | None = None,
        *,
        pipelines: Mapping[str, Any] | None = None,
        slots: int = 0,
        **settings: object,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "worker.log"
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name != "REDIS_URL"}
        self._env = {
            **plain,
            "PENSTOCK_REDIS_URL": url,
            "PENSTOCK_MODELS": json.dumps(models),
            **({"PENSTOCK_PIPELINES": json.dumps(pipelines)} if pipelines else {}),
            "PENSTOCK_STORE__STATE_DIR": str(folder / "state"),
            **{f"PENSTOCK_WORKER__{name.upper()}": str(value) for name, value in settings.items()},
            **(env or {}),
        }
        self.command: Sequence[str] = ("penstock.workers",)
        self._process: Process | None = None
        self._slots = slots or sum(int(table.get("slots", 1)) for table in models.values()) + len(pipelines or {})
        self._url = url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = start(*self.command, env=self._env, stdout=log, stderr=log, start_new_session=True)

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @contextmanager
    def standstill(self) -> Iterator[None]:
        """The worker is stopped within the block, so that it claims no job; its children are not."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to the whole process group, as a host does that runs out of memory or power."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def exit_code(self, *, within_s: float) -> int:
        return self.process.wait(timeout=within_s)

    def await_ready(self) -> str:
        """Return the worker's name, once all its slots are ready."""
        store = RedisStore(self._url)
        try:
            return eventually(lambda: self._ready_name(store), timeout_s=60.0)
        finally:
            store.close()

    def _ready_name(self, store: RedisStore) -> str:
        assert self.process.poll() is None, self.log.read_text()[-4_000:]
        for worker in store.workers():
            if worker.pid == self.process.pid and [slot.state for slot in worker.slots] == ["ready"] * self._slots:
                return worker.name
        return ""

    def events(self, name: str, model: str = "") -> list[dict[str, Any]]:
        """Return the log lines of one event, of all models or of this one."""
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
        found = [entry for line in lines if (entry := json.loads(line)).get("event") == name]
        return [entry for entry in found if not model or entry.get("model") == model]


class JobClient:
    """Submits and reads jobs of one model."""

    def __init__(self, url: str, model: str, *, limits: Limits | None = None) -> None:
        self.store = RedisStore(url)
        self.model = model
        self._limits = limits or Limits()

    def submit(self, *inputs: Any, deadline_s: float = 3_600.0) -> list[JobId]:
        """Submit all inputs in one call, so that one claim can find all the jobs together."""
        jobs = [replace(self._job(value), deadline_s=deadline_s) for value in inputs]
        answers = self.store.submit(jobs)
        assert all(answer.status is SubmitStatus.CREATED for answer in answers)
        return [job.id for job in jobs]

    def _job(self, value: Any) -> NewJob:
        return NewJob(
            new_job_id(self.model),
            "1",
            Payload("application/json", json.dumps(value).encode()),
            max_attempts=self._limits.max_attempts,
            max_crashes=self._limits.max_crashes,
        )

    def job(self, id: JobId) -> Job:
        job = self.store.read(id)
        assert job is not None
        return job

    def states(self, ids: Iterable[JobId]) -> list[str]:
        return [self.job(id).state.value for id in ids]

    def await_final(self, ids: Sequence[JobId], *, timeout_s: float = 40.0) -> list[Job]:
        """Return the jobs, once all have ended. They are read one after the other, because each look costs a call."""
        give_up_at = time.monotonic() + timeout_s
        return [eventually(partial(self._ended, id), timeout_s=give_up_at - time.monotonic()) for id in ids]

    def _ended(self, id: JobId) -> Job | None:
        job = self.job(id)
        return job if job.state.final else None

    def output(self, id: JobId) -> Any:
        found = self.store.result(id)
        assert found is not None
        assert found[1] is not None
        return json.loads(found[1].data)

    def close(self) -> None:
        self.store.close()
