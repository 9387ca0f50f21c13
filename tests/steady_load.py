"""Submits jobs without a pause while a test or a drill breaks the store, and tells afterwards what became of those accepted."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import httpx2

from tests.acceptance.gateway_process import gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, WorkerProcess

_ANSWER_S = 10.0
REPLICATED = {"PENSTOCK_STORE__DURABILITY": "replicated"}


class SteadyLoad:
    """Each submit is repeated with its key until it is accepted. Models take turns. `accepted`: ids of jobs with their outputs
    to come; each model of `tests/handlers/paced.py` answers with the job's own tag.
    """

    def __init__(self, url: str, models: Sequence[str], *, threads: int = 4) -> None:
        self._url, self._models = url, itertools.cycle(models)
        self._lock = threading.Lock()
        self.accepted: dict[str, str] = {}
        self.refused = 0
        self.accepted_at: dict[str, float] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def __enter__(self) -> SteadyLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with httpx2.Client(base_url=self._url, timeout=_ANSWER_S) as client:
            while not self._stop.is_set():
                with self._lock:
                    model = next(self._models)
                self._submit_until_accepted(client, model, uuid4().hex)

    def _submit_until_accepted(self, client: httpx2.Client, model: str, key: str) -> None:
        while not self._stop.is_set():
            found = _submitted(client, model, key)
            if found:
                with self._lock:
                    self.accepted[found] = key
                    self.accepted_at[model] = time.monotonic()
                return
            self.refused += 1
            self._stop.wait(0.05)

    def await_more(self, count: int, *, timeout_s: float = 60.0) -> None:
        wanted = len(self.accepted) + count
        eventually(lambda: len(self.accepted) >= wanted, timeout_s=timeout_s)

    def await_accepted(self, model: str, *, since: float, timeout_s: float = 60.0) -> float:
        """Wait until a job of this model is accepted; seconds from `since`, a monotonic moment, to then."""
        eventually(lambda: self.accepted_at.get(model, 0.0) > since, timeout_s=timeout_s)
        return self.accepted_at[model] - since

    def ends(self, *, within_s: float = 60.0) -> Counter[str]:
        """How many of the accepted jobs are in which state, once all have ended or the time is over: `lost` are those that the
        store does not know, `wrong` those with another output than theirs.
        """
        left, found = dict(self.accepted), Counter[str]()
        give_up_at = time.monotonic() + within_s
        with httpx2.Client(base_url=self._url, timeout=_ANSWER_S) as client:
            while left:
                for job, key in list(left.items()):
                    state = _state(client, job, key)
                    if state not in ("queued", "running", "away") or time.monotonic() > give_up_at:
                        found[state] += 1
                        del left[job]
        return found


def _submitted(client: httpx2.Client, model: str, key: str) -> str:
    """The id of the job; empty if it was not accepted."""
    try:
        answer = client.post(f"/v1/models/{model}/jobs", json={"tag": key}, headers={"Idempotency-Key": key})
    except httpx2.TransportError:
        return ""
    return str(answer.json()["id"]) if answer.status_code == 202 else ""


def _state(client: httpx2.Client, job: str, key: str) -> str:
    try:
        result = client.get(f"/v1/jobs/{job}/result")
        if result.status_code == 200:
            return "succeeded" if result.json() == key else "wrong"
        answer = client.get(f"/v1/jobs/{job}")
    except httpx2.TransportError:
        return "away"
    if answer.status_code == 404:
        return "lost"
    state = str(answer.json()["status"]) if answer.status_code == 200 else "away"
    # It may have ended between the two questions.
    return "running" if state == "succeeded" else state


@contextmanager
def serving(url: str, folder: Path, models: Sequence[str], env: Mapping[str, str] = REPLICATED) -> Iterator[str]:
    """The gateway's address, once a worker serves these models."""
    tables = {model: {"source": str(HANDLERS / "paced.py")} for model in models}
    with ExitStack() as opened:
        worker = opened.enter_context(WorkerProcess(url, folder / "worker", tables))
        log = opened.enter_context((folder / "gateway.log").open("w"))
        gateway = opened.enter_context(gateway_process(url, folder / "gateway", models=tables, env=dict(env), log=log))
        worker.await_ready()
        yield str(gateway.base_url)


def lost_of(ends: Counter[str]) -> int:
    """How many accepted jobs did not end as they should."""
    return sum(count for state, count in ends.items() if state != "succeeded")
