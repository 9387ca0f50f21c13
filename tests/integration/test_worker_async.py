"""An async handler in a real worker: an item that never answers has an end of its own."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Thread

import pytest

from penstock.job import JobState
from penstock.model_spec import Limits
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess

MODEL = "waiting"


@pytest.fixture
def jobs(fresh_redis: str) -> Iterator[JobClient]:
    client = JobClient(fresh_redis, MODEL, limits=Limits(max_attempts=1))
    yield client
    client.close()


def worker_of(url: str, folder: Path, **limits: float) -> WorkerProcess:
    return WorkerProcess(url, folder / "w", {MODEL: {"source": str(HANDLERS / "waiting.py"), **limits}})


def test_an_item_is_stopped_at_its_deadline_and_the_process_goes_on(jobs: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    with worker_of(fresh_redis, tmp_path) as worker:
        worker.await_ready()
        [before, stuck] = jobs.await_final([*jobs.submit("a"), *jobs.submit("forever", deadline_s=2.0)])
        [after] = jobs.await_final(jobs.submit("b"))
        assert stuck.state is JobState.EXPIRED
        assert jobs.output(before.id) == jobs.output(after.id)


def test_an_item_that_runs_past_the_time_limit_fails_alone(jobs: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    # All at once: they wait before the worker starts.
    stuck, *others = jobs.submit("forever", "a", "b", "c")
    with worker_of(fresh_redis, tmp_path, max_run_s=2.0) as worker:
        worker.await_ready()
        [failed] = jobs.await_final([stuck])
        assert failed.error is not None
        assert failed.error.code == "timeout"
        ended = jobs.await_final([*others, *jobs.submit("d")])
        assert len({jobs.output(job.id) for job in ended}) == 1
        assert not worker.events("child_ended")


class Service(ThreadingHTTPServer):
    """Tells the first request of all to come again. `most`: how many were under way at once."""

    # All items of the model connect at once, and a connection that found no room here would be tried again.
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.numbers = itertools.count(1)
        self.changed = Condition()
        self.here = self.most = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Answers wait for company, until there was some."""
        with self.changed:
            self.here += 1
            self.most = max(self.most, self.here)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.most > 1, timeout=1.0)
        yield
        with self.changed:
            self.here -= 1


class Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, Service)
        if next(self.server.numbers) == 1:
            self.send_response(503)
            self.end_headers()
            return
        with self.server.counted():
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"seen": asked}).encode())

    def log_message(self, *_: object) -> None: ...


def test_the_example_of_a_proxy_has_several_requests_under_way_and_tries_again(fresh_redis: str, tmp_path: Path) -> None:
    folder = HANDLERS.parents[1] / "examples" / "proxy"
    table = tomllib.loads((folder / "penstock.toml").read_text())["models"]["proxy"] | {"source": str(folder / "handler.py")}
    jobs = JobClient(fresh_redis, "proxy", limits=Limits(max_attempts=5))
    asked = [{"n": number} for number in range(16)]
    waiting = jobs.submit(*asked)
    with Service() as service:
        Thread(target=service.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}/"
        with WorkerProcess(fresh_redis, tmp_path / "w", {"proxy": table}, {"SERVICE_URL": url}):
            ended = jobs.await_final(waiting)
        service.shutdown()
    assert [jobs.output(job.id) for job in ended] == [{"seen": one} for one in asked]
    assert sorted(job.attempts for job in ended) == [*[1] * 15, 2]
    assert service.most > 1
    jobs.close()
