"""What both servers keep when a process is killed: their worker, and all that they are."""

from __future__ import annotations

import http.client
import json
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.torchserve import servers
from benchmarks.torchserve.archives import SLOW
from benchmarks.torchserve.servers import ModelServer, Site, make_site
from penstock.errors import PenstockError

REQUESTS = 60
# A call takes 50 ms, so that after this time some requests are answered, and most wait.
_KILL_AFTER_S = 0.8
_ENDED_S = 120.0
_PATH = f"/predictions/{SLOW.name}"


def measure(folder: Path) -> dict[str, Any]:
    """Of 60 requests: how many were accepted, and of these how many got their own answer, by server and by what was killed."""
    return {
        "torchserve": {
            "worker": _synchronous(servers.torchserve, folder / "their-worker", _kill_worker),
            "server": _synchronous(servers.torchserve, folder / "their-server", _kill_all),
        },
        "penstock": {
            "worker": _synchronous(servers.penstock, folder / "our-worker", _kill_worker),
            "server": _durable(folder / "our-server"),
        },
    }


def _site(folder: Path) -> Site:
    folder.mkdir(parents=True)
    return make_site(folder / "site", [SLOW])


def _synchronous(start: Any, folder: Path, kill: Callable[[ModelServer], None]) -> dict[str, int]:
    """All requests wait for their answer over connections of their own while the process is killed."""
    with start(_site(folder)) as server, ThreadPoolExecutor(REQUESTS) as threads:
        asked = [threads.submit(_answered, server.site.inference, number) for number in range(REQUESTS)]
        time.sleep(_KILL_AFTER_S)
        kill(server)
        return {"accepted": REQUESTS, "answered": sum(one.result() for one in asked)}


def _answered(port: int, number: int) -> bool:
    with suppress(OSError, http.client.HTTPException, ValueError):
        status, value = _ask(port, "POST", _PATH, {"number": number})
        return bool(status == 200 and value["number"] == number)
    return False


def _durable(folder: Path) -> dict[str, int]:
    """Jobs are submitted, everything is killed, and the same command is started again."""
    site = _site(folder)
    with servers.penstock(site) as server:
        views = [_ask(site.inference, "POST", f"/v1/models/{SLOW.name}/jobs", {"number": at}) for at in range(REQUESTS)]
        accepted = [view["id"] for status, view in views if status == 202]
        _kill_all(server)
    with servers.penstock(site):
        give_up_at = time.monotonic() + _ENDED_S
        while time.monotonic() < give_up_at and not all(_has_ended(site.inference, job) for job in accepted):
            time.sleep(0.2)
        kept = [_result(site.inference, job) for job in accepted]
    return {"accepted": len(accepted), "answered": sum(number == at for at, number in enumerate(kept))}


def _has_ended(port: int, job: str) -> bool:
    return bool(_ask(port, "GET", f"/v1/jobs/{job}")[1]["status"] not in ("queued", "running"))


def _result(port: int, job: str) -> Any:
    status, value = _ask(port, "GET", f"/v1/jobs/{job}/result")
    return value["number"] if status == 200 else None


def _ask(port: int, method: str, path: str, value: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ENDED_S)
    try:
        body = None if value is None else json.dumps(value)
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def _kill_all(server: ModelServer) -> None:
    _kill(server.processes())


def _kill_worker(server: ModelServer) -> None:
    """The process that runs the handler: the last that was started below the server."""
    below = [process for process in server.processes() if _runs_model(process)]
    if not below:
        raise PenstockError("no process of the server runs the model")
    _kill(below)


def _runs_model(process: psutil.Process) -> bool:
    command = " ".join(process.cmdline())
    return "model_service_worker" in command or "penstock.workers.child" in command


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
