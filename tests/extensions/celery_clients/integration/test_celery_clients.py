"""docs/reference/celery.md, row by row: an unmodified Celery client, in a process without penstock, sends tasks to models."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.eventually import eventually
from tests.extensions.celery_clients.integration.stock_client import StockClient, stock_worker
from tests.faults.server import Server
from tests.integration.worker_process import Gate, JobClient, WorkerProcess

ORDERED = str(Path(__file__).resolve().parents[3] / "handlers" / "ordered.py")
MODELS = {
    "ordered": {"source": f"{ORDERED}:Ordered", "warm_up": False, "max_batch_size": 1},
    "sized": {"source": f"{ORDERED}:Measured", "warm_up": False},
}


@pytest.fixture(scope="module")
def server(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("clients"), fsync="everysec")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def worker(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(server.url, tmp_path_factory.mktemp("worker"), MODELS, beat_s=0.8) as process:
        process.await_ready()
        yield process


@pytest.fixture(scope="module")
def client(server: Server, worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockClient]:
    with closing(StockClient(server.url, tmp_path_factory.mktemp("client"))) as client:
        yield client


def test_a_model_is_a_task_and_its_result_comes_back(client: StockClient) -> None:
    assert client.found('found = signature("penstock.ordered", app=app).delay({"echo": 4}).get(timeout=60)') == 4
    assert client.found('found = app.send_task("penstock.infer", ["ordered", {"echo": [1]}]).get(timeout=60)') == [1]
    assert client.found('found = app.send_task("penstock.ordered", kwargs={"input": {"echo": 5}}).get(timeout=60)') == 5


@pytest.mark.parametrize("queue", ["penstock", "penstock.{ordered}", "penstock.ordered"])
def test_all_ten_priorities_are_served(client: StockClient, server: Server, queue: str) -> None:
    code = f"""
sent = [app.send_task("penstock.ordered", [{{"echo": n}}], queue={queue!r}, priority=n) for n in range(10)]
found = [one.get(timeout=60) for one in sent]
"""
    assert client.found(code) == list(range(10))
    with closing(JobClient(server.url, "ordered")) as jobs:
        urgent = [jobs.job(id).priority.value for id in jobs.store.newest("ordered", limit=10)]
    assert sorted(urgent) == ["bulk"] * 4 + ["interactive"] * 6


def test_a_client_with_priority_steps_of_its_own_is_served_too(client: StockClient, server: Server) -> None:
    steps = [1, 2, 4, 5, 7, 8]
    with redis.Redis.from_url(server.url) as store:
        for step in steps:
            store.lpush(f"penstock.{{ordered}}\x06\x16{step}", message(f"step-{step}", [{"echo": step}]))
    assert client.found(f'found = [app.AsyncResult(f"step-{{n}}").get(timeout=60) for n in {steps}]') == steps


def message(id: str, args: Any, task: str = "penstock.ordered", **headers: Any) -> bytes:
    """Return what kombu puts into a queue."""
    body = base64.b64encode(json.dumps([args, {}, {}]).encode()).decode()
    parts = {"body": body, "headers": {"id": id, "task": task, **headers}, "properties": {"body_encoding": "base64"}}
    return json.dumps({**parts, "content-type": "application/json"}).encode()


@pytest.mark.parametrize("size", [100, 300_000])
def test_the_result_is_the_real_one_whatever_its_size_and_kind(client: StockClient, size: int) -> None:
    assert client.found(f'found = len(app.send_task("penstock.ordered", [{{"size": {size}}}]).get(timeout=60))') == size
    code = f'found = app.send_task("penstock.ordered", [{{"bytes": {size}}}]).get(timeout=60) == bytes([255]) * {size}'
    assert client.found(code) is True


def test_an_input_of_bytes_arrives_as_bytes(client: StockClient) -> None:
    assert client.found('found = app.send_task("penstock.sized", [bytes([255]) * 1000]).get(timeout=60)') == 1000
    assert client.found('found = app.send_task("penstock.sized", [b"plain"]).get(timeout=60)') == 5


def test_a_failed_job_raises_its_own_error_at_the_client(client: StockClient) -> None:
    error = client.run('app.send_task("penstock.ordered", [{"code": "not_a_cat"}]).get(timeout=60)')
    assert error["error"] == "HandlerError"
    assert error["text"] == "not_a_cat: refused with not_a_cat"
    error = client.run('app.send_task("penstock.ordered", [{"code": "timeout"}]).get(timeout=60)')
    assert error["error"] == "HandlerTimeout"


def state(client: StockClient) -> Any:
    return client.found("found = [sent.state, sent.info if isinstance(sent.info, dict) else str(sent.info)]")


def shows(client: StockClient, wanted: str) -> Any:
    """Return state and info of the task once it has this state."""
    seen = state(client)
    return seen if seen[0] == wanted else None


def test_the_state_shows_a_run_its_progress_and_its_end(client: StockClient, tmp_path: Path) -> None:
    for gate, shown in ((tmp_path / "started", "STARTED"), (tmp_path / "gate.half", "PROGRESS")):
        order = {"until": str(gate), "echo": 1}
        client.found(f'sent = app.send_task("penstock.ordered", [{order!r}])')
        name, info = eventually(partial(shows, client, shown))
        assert "job" in info
        assert name == "STARTED" or (info["current"], info["total"], info["note"]) == (0.5, 1, "half")
        Gate(gate).open()
        assert client.found("found = sent.get(timeout=60)") == 1
        assert state(client)[0] == "SUCCESS"


def test_the_state_shows_a_job_that_is_tried_again(client: StockClient) -> None:
    client.found('sent = app.send_task("penstock.ordered", [{"busy": "once"}])')
    assert "busy" in eventually(partial(shows, client, "RETRY"))[1]
    assert client.found("found = sent.get(timeout=60)") == "done"


def test_a_start_and_an_expiry_are_kept(client: StockClient) -> None:
    assert client.found('found = app.send_task("penstock.ordered", [{"echo": 1}], countdown=0.2).get(timeout=60)') == 1
    late = client.run('app.send_task("penstock.ordered", [{"echo": 1}], expires=app.now().replace(year=2020)).get(timeout=60)')
    assert late["error"] == "TaskRevokedError"


def test_a_group_works(client: StockClient) -> None:
    code = 'found = group(signature("penstock.ordered", [{"echo": n}], app=app) for n in range(5))().get(timeout=60)'
    assert client.found(code) == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def shop(server: Server, client: StockClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockClient]:
    """Yield a client beside which a worker of its own app runs: `m(order)` is a model's task, `s(name)` one of the app's."""
    client.found('m = lambda *args, **more: signature("penstock.ordered", args=args, app=app, **more)')
    client.found('s = lambda name, *args, **more: signature(f"shop.{name}", args=args, app=app, **more)')
    with stock_worker(server.url, tmp_path_factory.mktemp("shop")):
        yield client


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ('m({"echo": {"echo": 5}}) | m()', 5),
        ('m({"echo": 4}) | s("double") | m()', 8),
        ('s("double", 4) | m() | s("double", "key")', {"key": 16}),
        ('m({"echo": 1}) | s("double", 7, immutable=True) | m()', 14),
        ('m({"bytes": 3}) | s("size")', 3),
        ('m({"size": 300_000}) | s("size").set(priority=9)', 300_000),
        ('m({"echo": 2}).set(ignore_result=True) | s("double")', {"echo": 4}),
        ('m({"echo": 3}) | group(s("double"), s("double", "key"))', [{"echo": 6}, {"key": 6}]),
        ('chord([s("double", 1), s("double", 2)], m())', [{"echo": 2}, {"echo": 4}]),
    ],
)
def test_a_chain_goes_on_with_the_result(shop: StockClient, code: str, result: Any) -> None:
    assert shop.found(f"found = ({code})().get(timeout=60)") == result


def test_a_callback_gets_the_result_and_is_the_tasks_child(shop: StockClient) -> None:
    shop.found('sent = m({"echo": 4}).apply_async(link=[s("double"), s("double", "key").set(countdown=0.1)])')
    assert shop.found("found = sent.get(timeout=60)") == 4
    assert shop.found("found = [one.get(timeout=60) for one in sent.children]") == [{"echo": 8}, {"key": 8}]


def test_a_failed_task_ends_its_chain_and_calls_its_errbacks(shop: StockClient) -> None:
    shop.found('sent = (m({"code": "not_a_cat"}) | s("double") | m()).apply_async(link_error=s("failed").set(task_id="told"))')
    assert shop.run("sent.get(timeout=60)")["error"] == "HandlerError"
    assert shop.found('found = app.AsyncResult("told").get(timeout=60) == sent.parent.parent.id') is True


def test_a_revoked_task_ends_its_chain_and_calls_no_errback(shop: StockClient, server: Server) -> None:
    shop.found('sent = (m({"echo": 1}).set(countdown=600) | m()).apply_async(link_error=s("failed").set(task_id="silent"))')
    eventually(lambda: asked(shop, "revoke(sent.parent.id") and shop.found("found = sent.state") == "REVOKED")
    with redis.Redis.from_url(server.url) as store:
        assert not store.zcard("ps:{*}:answers")
        assert not store.exists("celery-task-meta-silent")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ('(m(1) | s("double").set(exchange="celery.pidbox"))().parent', "unknown field `exchange`"),
        ('m(1).apply_async(link=s("double").set(queue="ps:{registry}:models"))', "no queue that a follow-up may be sent to"),
        ('m(1).apply_async(link=m() | s("double"))', "not by a chain"),
        ('m(1).apply_async(link=[s("double")] * 101)', "at most 100 tasks may follow"),
        ('m(1).apply_async(link=s("double", "x" * 70_000))', "at most 65536 bytes"),
        ('chord([m(1), m(2)], s("size"))()', "cannot be one of a chord"),
        ("(m(1) | group(m(), m()) | m())()", "by tasks and groups, not by a chord"),
    ],
)
def test_what_cannot_follow_a_task_is_refused_at_once(shop: StockClient, code: str, reason: str) -> None:
    error = shop.run(f"({code}).get(timeout=60)")
    assert (error["error"], reason in error["text"]) == ("BadRequest", True), error


def test_a_result_that_nobody_wants_is_not_kept(client: StockClient, server: Server) -> None:
    with closing(JobClient(server.url, "ordered")) as jobs:
        before = set(jobs.store.newest("ordered"))
        id = client.found('found = app.send_task("penstock.ordered", [{"echo": 1}], ignore_result=True).id')
        [job] = eventually(lambda: set(jobs.store.newest("ordered")) - before)
        jobs.await_final([job])
    with redis.Redis.from_url(server.url) as store:
        assert not store.exists(f"celery-task-meta-{id}")


def test_results_are_kept_for_a_day(client: StockClient, server: Server) -> None:
    """Those that Lua writes, and those that a worker does."""
    with redis.Redis.from_url(server.url) as store:
        for order in ({"echo": 1}, {"bytes": 1}, {"code": "no"}):
            client.found(f'sent = app.send_task("penstock.ordered", [{order!r}]); sent.get(timeout=60, propagate=False)')
            id = client.found("found = sent.id")
            assert 86_000 < store.ttl(f"celery-task-meta-{id}") <= 86_400


def test_the_settings_of_a_django_project_send_a_task(client: StockClient, server: Server) -> None:
    """`config_from_object` with the namespace CELERY, as in a project's celery.py, here without Django itself."""
    code = f"""
import types
from celery import current_app
url = {server.url!r}
settings = types.SimpleNamespace(CELERY_BROKER_URL=url, CELERY_RESULT_BACKEND=url)
settings.CELERY_TASK_ROUTES = {{"penstock.*": {{"queue": "penstock"}}}}
project = Celery("proj")
project.config_from_object(settings, namespace="CELERY")
project.set_current()
found = current_app.send_task("penstock.ordered", [{{"echo": 11}}]).get(timeout=60)
app.set_current()
"""
    assert client.found(code) == 11


def test_a_flask_view_sends_a_task(client: StockClient, server: Server) -> None:
    code = f"""
from flask import Flask, jsonify
web = Flask("shop")
celery_app = Celery(web.name, broker={server.url!r}, backend={server.url!r})
celery_app.conf.task_routes = {{"penstock.*": {{"queue": "penstock"}}}}
web.route("/")(lambda: jsonify(celery_app.send_task("penstock.ordered", [{{"echo": 12}}]).get(timeout=60)))
found = web.test_client().get("/").json
app.set_current()
"""
    assert client.found(code) == 12


BAD = {
    "an unknown model": ('"penstock.nosuch", [1]', "there is no model 'nosuch'; the models: ordered, sized"),
    "another task": ('"shop.buy", [1], queue="penstock"', "takes tasks named"),
    "no input": ('"penstock.ordered"', "got no input"),
    "too many inputs": ('"penstock.ordered", [1, 2]', "takes args=[input]"),
    "an unknown keyword": ('"penstock.ordered", [1], {"x": 1}', "unknown field `x`"),
    "an unknown version": ('"penstock.ordered", [1], {"version": "9"}', "no version '9'"),
    "an unknown priority": ('"penstock.ordered", [1], {"priority": "high"}', "'interactive' or 'bulk'"),
    "a media type of JSON": ('"penstock.ordered", [1], {"content_type": "image/png"}', "is that of bytes"),
    "a time limit": ('"penstock.ordered", [1], time_limit=5', "a task has no time_limit"),
    "compression": ('"penstock.ordered", [1], compression="zlib"', "compressed"),
    "pickle": ('"penstock.ordered", [1], serializer="pickle"', "only the json serializer"),
    "a start after its end": ('"penstock.ordered", [1], {"deadline_s": 1}, countdown=60', "before the start"),
    "a start in 31 days": ('"penstock.ordered", [1], countdown=31 * 86_400', "at most 2592000 s"),
    "another model's queue": ('"penstock.infer", ["sized", 1], queue="penstock.{ordered}"', "this is the queue of"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_task_fails_once_with_the_reason(client: StockClient, case: str) -> None:
    code, reason = BAD[case]
    error = client.run(f"app.send_task({code}).get(timeout=60)")
    assert error["error"] == "BadRequest"
    assert reason in error["text"]


def test_a_message_that_comes_twice_makes_one_job(client: StockClient, server: Server) -> None:
    with redis.Redis.from_url(server.url) as store, closing(JobClient(server.url, "ordered")) as jobs:
        before = jobs.store.stats("ordered").accepted
        for retries in (0, 1):
            store.lpush("penstock", message("twice", [{"echo": 2}], retries=retries))
            assert client.found('found = app.AsyncResult("twice").get(timeout=60)') == 2
        client.found('found = app.send_task("penstock.ordered", [{"echo": 1}]).get(timeout=60)')
        assert jobs.store.stats("ordered").accepted == before + 2
        assert store.zcard("ps:{*}:foreign") == store.zcard("ps:{ordered}:foreign") == 0


def test_a_message_that_a_killed_worker_took_is_not_lost(client: StockClient, server: Server) -> None:
    """It lies where a worker puts what it takes, as after a kill between taking a message and looking at it."""
    with redis.Redis.from_url(server.url) as store:
        store.lpush("ps:{*}:arrived", message("taken", [{"echo": 3}]))
        assert client.found('found = app.AsyncResult("taken").get(timeout=60)') == 3
        store.zadd("ps:{*}:foreign", {message("handed out", [{"echo": 4}]): 1.0})
        assert client.found('found = app.AsyncResult("handed out").get(timeout=60)') == 4


def test_ten_thousand_tasks_of_an_unknown_model_and_poison_do_not_close_the_door(client: StockClient, server: Server) -> None:
    unknown = [message(f"no-{n}", [n], "penstock.nosuch") for n in range(10_000)]
    with redis.Redis.from_url(server.url) as store:
        store.lpush("penstock", b"\x80\x04pickle", b"[" * 100_000, b"", *unknown)
        assert client.found('found = app.send_task("penstock.ordered", [{"echo": 6}]).get(timeout=60)') == 6
        assert client.run('app.AsyncResult("no-9999").get(timeout=60)')["error"] == "BadRequest"
        eventually(lambda: store.zcard("ps:{*}:foreign") == 0)


def test_revoke_ends_what_waits_and_leaves_what_runs_unless_it_is_to_end(client: StockClient, tmp_path: Path) -> None:
    order = {"until": str(tmp_path / "gate")}
    client.found(f'running = app.send_task("penstock.ordered", [{order!r}])')
    eventually(lambda: client.found("found = running.state") == "STARTED")
    client.found('later = app.send_task("penstock.ordered", [{"echo": 1}], countdown=600)')
    eventually(lambda: asked(client, "revoke(later.id") and client.found("found = later.state") == "REVOKED")
    assert "left so without terminate" in asked(client, "revoke([running.id]")["ok"]
    assert "results will be dropped" in asked(client, "revoke([running.id], terminate=True")["ok"]
    assert client.run("running.get(timeout=60)")["error"] == "TaskRevokedError"


def asked(client: StockClient, command: str) -> dict[str, str]:
    """Return the only worker's answer to a remote command."""
    [answer] = client.found(f"found = app.control.{command}, reply=True, timeout=5, limit=1)")[0].values()
    return dict(answer)


def test_a_task_that_was_revoked_before_anybody_read_it_never_runs(client: StockClient, server: Server) -> None:
    assert "revoked if their messages come" in asked(client, 'revoke("unread"')["ok"]
    with redis.Redis.from_url(server.url) as store:
        store.lpush("penstock", message("unread", [{"echo": 1}]))
    assert client.run('app.AsyncResult("unread").get(timeout=60)')["error"] == "TaskRevokedError"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ('cancel_consumer("penstock.{ordered}"', "a worker serves the models of its settings"),
        ('add_consumer("penstock.{ordered}"', "a worker serves the models of its settings"),
        ('rate_limit("penstock.ordered", "1/s"', "rate_per_s"),
        ('time_limit("penstock.ordered", 5', "max_run_s"),
        ("autoscale(4, 1", "settings scale its slots, and Celery does not"),
        ("pool_shrink(1", "every model keeps a slot"),
        ("pool_grow(0", "above 0"),
    ],
)
def test_a_command_that_cannot_do_what_it_says_is_refused(client: StockClient, command: str, reason: str) -> None:
    assert reason in asked(client, command)["error"]


def own_celery(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `celery -A penstock.broker.celery_app ...` to its end."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PENSTOCK_REDIS_URL": server.url}
    command = [sys.executable, "-m", "celery", "-A", "penstock.broker.celery_app", *words]
    env["PENSTOCK_MODELS"] = json.dumps(MODELS)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_celerys_command_line_calls_a_model(client: StockClient, server: Server) -> None:
    called = own_celery(server, "call", "penstock.infer", "--args", json.dumps(["ordered", {"echo": 7}]))
    assert client.found(f"found = app.AsyncResult({called.stdout.strip()!r}).get(timeout=60)") == 7
    assert own_celery(server, "result", called.stdout.strip()).stdout.strip() == "7"


def test_a_worker_refuses_options_that_cannot_do_what_they_say(server: Server) -> None:
    refused = own_celery(server, "worker", "-Q", "penstock.{ordered}", "-c", "7", "--autoscale", "4,1")
    assert refused.returncode == 4
    assert "-Q: a worker serves the models of its settings; give each worker a penstock.toml" in refused.stderr
    assert "--autoscale: a model's settings scale its slots, and Celery does not" in refused.stderr
    assert "-c: a worker has the slots of its models" in refused.stderr


@pytest.mark.parametrize("command", ["add_consumer", "cancel_consumer"])
def test_celerys_command_line_shows_why_a_command_is_refused(worker: WorkerProcess, server: Server, command: str) -> None:
    # With a destination, Celery does not wait for answers of others.
    said = own_celery(server, "control", "-d", worker.await_ready(), "--timeout", "20", command, "penstock.{ordered}")
    assert "a worker serves the models of its settings" in said.stdout + said.stderr, said


def test_the_table_names_tests_that_exist() -> None:
    root = Path(__file__).resolve().parents[4]
    page, _, _ = (root / "docs" / "reference" / "celery.md").read_text().partition("## What works")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert rows
    for row in rows:
        names = re.findall(r"`((?:tests/[\w/]+\.py::)?test_\w+)`", row)
        assert names, row
        for file, _, test in (name.rpartition("::") for name in names):
            assert f"def {test}(" in (root / file if file else Path(__file__)).read_text(), test
