"""A28: the limits of a stolen Redis password. The embedded server has one user for the gateway and one for the worker."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from penstock.broker.server.users import CALLED_BY_FUNCTIONS, CELERY, FLOWER, GATEWAY, WORKER, rules, setuser_lines
from penstock.broker.store.library import library
from penstock.broker.store.sync import RedisStore
from penstock.embedded.server import EmbeddedServer
from penstock.errors import StoreUnavailable
from tests.acceptance.gateway_process import gateway_process
from tests.command import called_here
from tests.eventually import eventually
from tests.extensions.celery_clients.integration.stock_client import StockClient
from tests.integration.worker_process import WorkerProcess
from tests.lua_files import LUA

SQUARE = {"square": {"source": str(Path(__file__).parents[2] / "examples" / "square.py")}}
REFUSED = [
    ("EVAL", "return 1", 0),
    ("EVAL_RO", "return 1", 0),
    ("EVALSHA", "0" * 40, 0),
    ("SCRIPT", "LOAD", "return 1"),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "LOAD", "#!lua name=evil\nredis.register_function('evil', function() return 1 end)"),
    ("FUNCTION", "FLUSH"),
    ("FUNCTION", "LIST"),
    ("FUNCTION", "DUMP"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "dir", "/tmp"),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("RANDOMKEY",),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("REPLICAOF", "192.0.2.1", "6379"),
    ("SLAVEOF", "192.0.2.1", "6379"),
    ("MIGRATE", "192.0.2.1", "6379", "ps:{registry}:models", "0", "10"),
    ("DEBUG", "SLEEP", "0"),
    ("MODULE", "LOAD", "/tmp/x.so"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "evil", "on", "nopass", "+@all"),
    ("MONITOR",),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("SHUTDOWN", "NOSAVE"),
    ("SAVE",),
    ("BGREWRITEAOF",),
    ("DUMP", "ps:{registry}:models"),
    ("RESTORE", "ps:x", 0, "x"),
    ("RENAME", "ps:{registry}:models", "ps:x"),
    ("OBJECT", "ENCODING", "ps:{registry}:models"),
    ("SORT", "ps:{registry}:models"),
    ("XADD", "ps:x", "*", "a", "b"),
]
FOREIGN_KEYS = [
    ("GET", "another-program"),
    ("SET", "another-program", "x"),
    ("DEL", "another-program"),
    ("HGETALL", "session:1"),
    ("LPUSH", "queue", "x"),
    ("SMEMBERS", "_kombu.other"),
    ("PUBLISH", "another-channel", "x"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("users"), fsync="everysec", users=True) as server:
        yield server


@pytest.fixture(params=[GATEWAY, WORKER])
def thief(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[redis.Redis]:
    url = server.gateway_url if request.param == GATEWAY else server.worker_url
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.mark.parametrize("command", [*REFUSED, *FOREIGN_KEYS], ids=lambda command: " ".join(map(str, command[:2]))[:30])
def test_a_stolen_password_does_not_run_that(thief: redis.Redis, command: tuple[str | int, ...]) -> None:
    with pytest.raises(redis.ResponseError, match=r"(?i)no permissions|not allowed"):
        thief.execute_command(*command)


def test_a_stolen_password_of_a_worker_makes_no_api_key(server: EmbeddedServer) -> None:
    with closing(redis.Redis.from_url(server.worker_url)) as thief:
        for command in ("HGETALL", "pk:{keys}:known"), ("HSET", "pk:{keys}:known", "evil", "{}"):
            with pytest.raises(redis.ResponseError, match=r"(?i)no permissions"):
                thief.execute_command(*command)
        with pytest.raises(redis.ResponseError, match=r"(?i)no permissions|can't access"):
            thief.fcall(f"penstock_change_key_{library()[0]}", 1, "pk:{keys}:", "evil", "", "{}", 10)


def test_a_function_called_with_a_foreign_key_is_refused(thief: redis.Redis) -> None:
    suffix, _ = library()
    with pytest.raises(redis.ResponseError):
        thief.execute_command("FCALL", f"penstock_read_{suffix}", 1, "another:", "x", "0")


@pytest.mark.parametrize("command", ["SUBSCRIBE", "PSUBSCRIBE"])
@pytest.mark.parametrize("channel", ["another-channel", "*", "__keyspace@0__:*"])
def test_foreign_channels_cannot_be_listened_to(thief: redis.Redis, command: str, channel: str) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        thief.execute_command(command, channel)


def test_without_a_password_nobody_gets_in(server: EmbeddedServer) -> None:
    bare = f"unix://{server.socket_path}"
    for url in (bare, f"unix://default:x@{server.socket_path}", f"unix://{WORKER}:wrong@{server.socket_path}"):
        with redis.Redis.from_url(url) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_the_passwords_are_their_owners_alone_and_the_servers_file_has_only_hashes(server: EmbeddedServer) -> None:
    folder = server.socket_path.parent
    for name in ("passwords.json", "users.acl"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    passwords = json.loads((folder / "passwords.json").read_text()).values()
    assert len(set(passwords)) == 5
    assert all(len(password) >= 32 for password in passwords)
    elsewhere = (folder / "users.acl").read_text() + server.log_path.read_text()
    assert not any(password in elsewhere for password in passwords)
    command = " ".join(server._command(Path("valkey-server")))
    assert not any(password in command for password in passwords), "they would show in the list of processes"


def test_the_functions_call_nothing_that_the_users_may_not(server: EmbeddedServer) -> None:
    source = "\n".join(LUA.values())
    called = {name.lower() for name in re.findall(r"(?:redis\.p?call\(|later\(todo, |send\(|\{)'([A-Z]{2,})'", source)}
    assert called - {"pubsub"} <= set(CALLED_BY_FUNCTIONS.split())
    assert {name.partition("|")[0] for name in CALLED_BY_FUNCTIONS.split()} - called == set(), "a right that nothing needs"


def test_a_gateway_and_a_worker_do_all_their_work_with_these_users(server: EmbeddedServer, tmp_path: Path) -> None:
    with redis.Redis.from_url(server.url) as admin:
        admin.acl_log_reset()
        with (
            gateway_process(server.gateway_url, tmp_path / "g", models=SQUARE) as client,
            WorkerProcess(server.worker_url, tmp_path / "w", SQUARE, beat_s=0.5, lease_s=2) as worker,
        ):
            name = worker.await_ready()
            eventually(lambda: client.get("/readyz").status_code == 200)
            assert client.post("/predictions/square", json={"x": 4}).json() == {"y": 16}
            job = client.post("/v1/models/square/jobs", json={"x": 5}).json()["id"]
            assert client.get(f"/v1/jobs/{job}/result", params={"wait": "10"}).json() == {"y": 25}
            assert client.post(f"/v1/jobs/{job}/cancel").status_code == 409
            assert client.get("/v1/jobs").status_code == 200
            assert "penstock_queue_depth" in client.get("/metrics").text
            # By default Celery waits one second. With a destination, Celery returns after the first answer.
            patience = ("--timeout", "20", "--destination", name)
            said = celery(server.worker_url, ["inspect", *patience, "ping"], ["control", *patience, "enable_events"])
            assert "pong" in said
            assert "task events enabled" in said
        assert [entry for entry in admin.acl_log() if entry["username"] in (GATEWAY, WORKER)] == []


CELERYS_MAIN = """
import json, sys
from celery.bin.celery import celery
for words in json.load(sys.stdin):
    celery.main(args=["-A", "penstock.broker.celery_app", *words], prog_name="celery", standalone_mode=False)
"""


def celery(url: str, *commands: list[str]) -> str:
    """The output of Celery's own command line, run with this store URL; one process runs all commands."""
    env = {**os.environ, "PENSTOCK_REDIS_URL": url, "PENSTOCK_MODELS": json.dumps(SQUARE)}
    argv, words = [sys.executable, "-c", CELERYS_MAIN], json.dumps(commands)
    return subprocess.run(argv, env=env, input=words, capture_output=True, text=True, timeout=60, check=False).stdout


def test_functions_that_are_missing_are_asked_of_the_administrator(server: EmbeddedServer) -> None:
    newer = "-- a version that nobody has loaded\n" + library()[1].partition("\n")[2].partition("\n")[2]
    with (
        closing(RedisStore(server.worker_url, source=newer)) as store,
        pytest.raises(StoreUnavailable, match="may not load them") as caught,
    ):
        store.stats("square")
    assert "penstock store load" in str(caught.value.hint)
    with closing(RedisStore(server.url, source=newer)) as administrator:
        administrator.load_functions()
        assert administrator.stats("square").depth == 0


def test_loading_for_a_new_version_also_takes_over_a_changed_file_of_users(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, fsync="everysec", users=True) as server, redis.Redis.from_url(server.url) as admin:
        with (tmp_path / "valkey" / "users.acl").open("a") as file:
            file.write("user extra on nopass ~extra:* -@all +ping\n")
        (tmp_path / "admin_url").write_text(server.url)
        env = {**os.environ, "PENSTOCK_REDIS_URL_FILE": str(tmp_path / "admin_url")}
        done = called_here("store", "load", "--reload-users", env=env, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert set(admin.acl_users()) == {"default", "extra", *rules()}


def test_the_commands_for_a_redis_of_ones_own_make_the_same_users(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, fsync="everysec") as server, redis.Redis.from_url(server.url) as admin:
        for line in setuser_lines({GATEWAY: "g" * 32, WORKER: "w" * 32, FLOWER: "f" * 32, CELERY: "c" * 32}):
            assert admin.execute_command(*line.split()) == b"OK"
        rights = admin.acl_getuser(WORKER)
        assert rights is not None
        assert "+fcall" in rights["commands"]
        assert set(rules()) == {"penstock-admin", GATEWAY, WORKER, FLOWER, CELERY}
        url = f"unix://{WORKER}:{'w' * 32}@{server.socket_path}"
        with redis.Redis.from_url(url) as worker, pytest.raises(redis.exceptions.NoPermissionError):
            worker.flushall()


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with EmbeddedServer(tmp_path_factory.mktemp("open"), fsync="everysec", users=True, port=port) as server:
        yield server


def test_a_celery_client_does_its_work_as_its_user(open_server: EmbeddedServer, tmp_path: Path) -> None:
    with (
        redis.Redis.from_url(open_server.url) as admin,
        WorkerProcess(open_server.worker_url, tmp_path, SQUARE) as worker,
        closing(StockClient(open_server.port_url(CELERY), tmp_path)) as client,
    ):
        worker.await_ready()
        admin.acl_log_reset()
        answer = client.run('found = app.send_task("penstock.square", [{"x": 4}], priority=3).get(timeout=20)')
        assert answer == {"found": {"y": 16}}, admin.acl_log()
        client.found('square = lambda *args, **more: signature("penstock.square", args=args, app=app, **more)')
        assert client.found('found = (square({"x": 2}) | square({"x": 3}, immutable=True))().get(timeout=20)') == {"y": 9}
        # Where a worker's user may not write, nothing is promised to be sent.
        refused = client.run('square({"x": 2}).apply_async(link=signature("shop.done", app=app)).get(timeout=20)')
        assert "may not write to the queue 'celery'" in refused["text"]
        admin.execute_command("ACL", "SETUSER", WORKER, "~celery")
        assert client.found('found = square({"x": 2}).apply_async(link=signature("shop.done", app=app)).get(timeout=20)') == {
            "y": 4
        }
        assert admin.llen("celery") == 1
        client.found('sent = app.send_task("penstock.square", [{"x": 1}], countdown=600)')
        eventually(lambda: client.found("app.control.revoke(sent.id); found = sent.state") == "REVOKED")
        client.found("sent.forget()")
        # Kombu ends the queue of answers by a script otherwise.
        client.found("app = Celery('again', broker=app.conf.broker_url); app.conf.control_queue_expires = None")
        eventually(lambda: client.found("found = app.control.ping(timeout=5, limit=1)"))
        assert admin.acl_log() == []


CELERYS_OWN = [("LPUSH", "penstock.{square}", "t"), ("RPOP", "penstock"), ("DEL", "penstock"), ("FCALL", "x", 0), ("INFO",)]
CELERYS_OWN += [
    ("GET", "ps:{registry}:models"),
    ("SET", "celery-task-meta-1", "x"),
    ("SSUBSCRIBE", "ps:{square}:worker:x"),
    ("LRANGE", "penstock", 0, -1),
]


@pytest.mark.parametrize(
    "command", [*REFUSED, *FOREIGN_KEYS, *CELERYS_OWN], ids=lambda command: " ".join(map(str, command[:2]))[:30]
)
def test_the_password_of_a_celery_client_does_not_run_that(open_server: EmbeddedServer, command: tuple[str | int, ...]) -> None:
    with (
        redis.Redis.from_url(open_server.port_url(CELERY)) as thief,
        pytest.raises(redis.ResponseError, match=r"(?i)no permissions|not allowed"),
    ):
        thief.execute_command(*command)


def test_the_port_of_celerys_clients_is_on_loopback_and_needs_a_password(open_server: EmbeddedServer) -> None:
    bare = open_server.port_url(CELERY).rpartition("@")[2]
    with redis.Redis.from_url(f"redis://{bare}") as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    with redis.Redis.from_url(open_server.url) as admin:
        assert admin.config_get("bind") == {"bind": "127.0.0.1"}
        assert CELERY in admin.acl_users()
