"""A start that cannot succeed ends by itself, with one line that says why: a script that waits for it must not hang."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.sync import RedisStore
from penstock.cli.exits import StartError
from penstock.cli.serve import setup
from penstock.cli.serve.start_watch import check_store
from penstock.embedded.server import EmbeddedServer
from penstock.errors import StoreUnavailable
from penstock.settings.tables import Settings
from tests.acceptance.gateway_process import gateway_process
from tests.acceptance.test_cli import SQUARE, clean_environment, stopped
from tests.acceptance.warm_command import run_command
from tests.acceptance.warm_up import PROCESSES, started
from tests.command import called_here
from tests.eventually import eventually
from tests.faults.server import Server
from tests.steady_load import REPLICATED

BROKEN = """
import os

import penstock

with open("loads", "a") as file:
    file.write("x")
if not os.path.exists("mended"):
    raise RuntimeError("the weights are missing")


@penstock.model
def broken(x: int) -> int:
    return x
"""


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that is expected to end by itself."""
    env = clean_environment() | variables
    return run_command(arguments, folder=folder, env=env, timeout_s=120.0, lent=PROCESSES)


@pytest.fixture(scope="module")
def server(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("store"), fsync="everysec", users=True) as server:
        yield server


@pytest.fixture
def evicting(server: EmbeddedServer) -> Iterator[str]:
    """Yield the URL of the store while it would delete jobs."""
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        yield server.url
        client.config_set("maxmemory-policy", "noeviction")


def test_up_ends_after_the_second_load_that_failed_alike(tmp_path: Path) -> None:
    # Regression: `up` went on for ever, and continuous integration hung.
    (tmp_path / "broken.py").write_text(BROKEN)
    done = run(tmp_path, "up", "broken.py", "--port", "0")
    assert done.returncode == 7, done.stderr
    last = done.stderr[done.stderr.index("error: ") :]
    assert "broken cannot be loaded, twice for the same reason" in last
    assert "the weights are missing" in last
    assert "--keep-trying" in last


def test_up_goes_on_if_asked_to_and_is_ready_once_the_model_can_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)

    def mend() -> None:
        eventually(
            lambda: len((tmp_path / "loads").read_text()) >= 3 if (tmp_path / "loads").exists() else False, timeout_s=60.0
        )
        (tmp_path / "mended").touch()

    thread = threading.Thread(target=mend)
    thread.start()
    try:
        up = started(tmp_path, "broken.py", "--keep-trying")
    finally:
        thread.join()
    assert up.penstock("call", "broken", "3").stdout == "3\n"
    assert stopped(up) == 0


@pytest.mark.parametrize(
    "command", [["up", str(SQUARE), "--port", "0"], ["gateway", "--port", "0"], ["worker", str(SQUARE)], ["runner"]]
)
def test_a_wrong_password_of_the_store_is_said_in_one_line(server: EmbeddedServer, tmp_path: Path, command: list[str]) -> None:
    # Regression: 46 warnings in 12 s, and so on for ever.
    done = run(tmp_path, *command, PENSTOCK_REDIS_URL=server.url.replace("@", "-is-wrong@"))
    assert done.returncode == 7, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == 2, done.stderr
    assert said[0].startswith("error: Redis refuses the user name or the password")
    assert said[1].startswith("  next: correct them in PENSTOCK_REDIS_URL")


FILL_AND_START = f"""
set -e
mount -t tmpfs -o size=4m tmpfs disk
cp /dev/zero disk/fill 2>/dev/null || true
set +e
"{sys.executable}" -m penstock up "{SQUARE}" --state-dir disk/state --port 0
"""


def has_namespaces() -> bool:
    tried = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    try:
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not has_namespaces(), reason="a small disk of one's own needs user namespaces")
@pytest.mark.parametrize("room_kib", [0, 60, 1024], ids=["no room", "room for the start alone", "room for some jobs"])
def test_a_full_disk_is_named(tmp_path: Path, room_kib: int) -> None:
    # Regression: a full disk was never named, and then it was "a bug".
    (tmp_path / "disk").mkdir()
    script = FILL_AND_START
    if room_kib:
        script = script.replace("set +e", f"truncate -s -{room_kib}K disk/fill\nset +e")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=tmp_path,
        env=clean_environment() | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    last = done.stderr[done.stderr.rindex("error: ") :]
    assert done.returncode in (1, 6, 7), done.stderr
    assert "disk" in last, done.stderr
    assert "full" in last or "No space left" in last, done.stderr
    assert "bug" not in last


EVICTING = "the job store may not be used: maxmemory-policy is allkeys-lru"


@pytest.mark.parametrize(
    "command", [["gateway", "--port", "0"], ["worker", str(SQUARE)], ["runner"]], ids=lambda words: words[0]
)
def test_a_store_that_would_delete_jobs_is_refused(evicting: str, tmp_path: Path, command: list[str]) -> None:
    # Regression: under an eviction policy a full store dropped records of accepted jobs, and nothing looked at the policy.
    check_refused(called_here(*command, cwd=tmp_path, env=clean_environment() | {"PENSTOCK_REDIS_URL": evicting}))


def test_up_refuses_a_store_that_would_delete_jobs_and_doctor_names_the_policy(evicting: str, tmp_path: Path) -> None:
    check_refused(run(tmp_path, "up", str(SQUARE), "--port", "0", PENSTOCK_REDIS_URL=evicting))
    doctor = called_here("doctor", cwd=tmp_path, env=clean_environment() | {"PENSTOCK_REDIS_URL": evicting})
    assert doctor.returncode == 1
    assert "maxmemory-policy is allkeys-lru" in doctor.stdout


def check_refused(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 7, done.stderr
    said = done.stderr.splitlines()
    assert said[0].startswith(f"error: {EVICTING}")
    assert "noeviction" in said[1]


@pytest.mark.parametrize(
    "command", [["gateway", "--port", "0"], ["worker", str(SQUARE)], ["runner"]], ids=lambda words: words[0]
)
def test_a_store_that_keeps_less_than_is_required_is_refused(
    server: EmbeddedServer, tmp_path: Path, command: list[str]
) -> None:
    env = {"PENSTOCK_REDIS_URL": server.url, "PENSTOCK_STORE__REQUIRE": "fsync"}
    done = called_here(*command, cwd=tmp_path, env=clean_environment() | env)
    assert done.returncode == 7, done.stderr
    assert "appendfsync is everysec" in done.stderr
    assert "appendfsync always" in done.stderr.splitlines()[1]


def test_a_store_that_keeps_less_than_it_could_is_warned_of_and_taken(server: EmbeddedServer) -> None:
    said: list[str] = []
    env = {"PENSTOCK_REDIS_URL": server.url, "PENSTOCK_STORE__REQUIRE": "log"}
    check_store(server.url, Settings.load(env=env).store, said.append)
    assert [text.partition(":")[2].split(";")[0] for text in said] == [
        " appendfsync is everysec: a power cut may lose the jobs of the last seconds"
    ]


def test_a_word_that_is_no_requirement_is_refused_with_those_that_are(tmp_path: Path) -> None:
    done = called_here("config", "--check", cwd=tmp_path, env=clean_environment() | {"PENSTOCK_STORE__REQUIRE": "always"})
    assert done.returncode == 4, done.stderr
    assert "no_eviction" in done.stderr + done.stdout


@pytest.fixture(scope="module")
def unwaiting(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server that has no WAITAOF, as Redis below 7.2."""
    folder = tmp_path_factory.mktemp("unwaiting")
    (folder / "without.conf").write_text('rename-command WAITAOF ""\n')
    server = Server(folder / "data", extra={"include": str(folder / "without.conf")})
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize(
    "command", [["gateway", "--port", "0"], ["worker", str(SQUARE)], ["runner"]], ids=lambda words: words[0]
)
def test_a_store_that_cannot_wait_for_replicas_is_refused_where_writes_are_to_wait(
    unwaiting: Server, tmp_path: Path, command: list[str]
) -> None:
    # Regression: the gateway started and was ready, and every submit was a 503.
    check_unwaiting(called_here(*command, cwd=tmp_path, env=replicated_environment(unwaiting.url)))


def test_up_refuses_it_as_well_and_doctor_names_the_next_step(unwaiting: Server, tmp_path: Path) -> None:
    env = replicated_environment(unwaiting.url)
    check_unwaiting(run(tmp_path, "up", str(SQUARE), "--port", "0", **REPLICATED, PENSTOCK_REDIS_URL=unwaiting.url))
    doctor = called_here("doctor", cwd=tmp_path, env=env)
    assert doctor.returncode == 1
    assert "it cannot wait for replicas" in doctor.stdout
    assert "use Redis 7.2 or newer" in doctor.stdout
    assert "connect a replica" not in doctor.stdout


def test_a_gateway_is_not_ready_while_its_store_cannot_wait_for_replicas(has_server: None, tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.start()
    try:
        with gateway_process(server.url, tmp_path / "gateway", env=REPLICATED) as gateway, server.client() as client:
            eventually(lambda: gateway.get("/readyz").status_code == 200)
            client.execute_command("ACL", "SETUSER", "default", "-waitaof")
            eventually(lambda: gateway.get("/readyz").status_code == 503)
            client.execute_command("ACL", "SETUSER", "default", "+waitaof")
            eventually(lambda: gateway.get("/readyz").status_code == 200)
    finally:
        server.stop()


def test_a_store_without_a_log_cannot_wait_for_replicas_either(unwaiting: Server, tmp_path: Path) -> None:
    server = Server(tmp_path / "data", extra={"appendonly": "no"})
    server.start()
    try:
        done = called_here("gateway", "--port", "0", cwd=tmp_path, env=replicated_environment(server.url))
        assert done.returncode == 7, done.stderr
        assert "appendonly" in done.stderr
    finally:
        server.stop()


def replicated_environment(url: str) -> dict[str, str]:
    return clean_environment() | REPLICATED | {"PENSTOCK_REDIS_URL": url}


def check_unwaiting(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 7, done.stderr
    said = done.stderr.splitlines()
    assert said[0].startswith("error: the job store may not be used: it cannot wait for replicas"), done.stderr
    assert "use Redis 7.2 or newer" in said[1]


@pytest.fixture(scope="module")
def without_functions(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that refuses FUNCTION in the words of a Redis that is too old to have it."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "renamed.conf").write_text("rename-command FUNCTION no-such-command\n")
    server = Server(folder, extra={"include": str(folder / "renamed.conf")})
    server.start()
    yield server.url
    server.stop()


@pytest.mark.parametrize(
    "command", [["up", str(SQUARE), "--port", "0"], ["gateway", "--port", "0"], ["worker", str(SQUARE)], ["runner"]]
)
def test_a_redis_without_functions_is_said_in_one_line(without_functions: str, tmp_path: Path, command: list[str]) -> None:
    """Regression: a gateway ended with a traceback of its lifespan, and a worker wrote tracebacks for ever."""
    done = run(tmp_path, *command, PENSTOCK_REDIS_URL=without_functions)
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: this Redis has no functions")
    assert "Valkey" in hint


async def test_the_processes_themselves_say_that_a_redis_has_no_functions(without_functions: str) -> None:
    store = AsyncStore(without_functions)
    await store.start()
    with pytest.raises(StoreUnavailable, match="this Redis has no functions"):
        await store.stats("square")
    await store.close()
    with closing(RedisStore(without_functions)) as blocking, pytest.raises(StoreUnavailable, match="no functions"):
        blocking.stats("square")


def test_doctor_tells_a_redis_without_functions_from_one_that_is_away(without_functions: str, tmp_path: Path) -> None:
    """Regression: doctor said "start it" of a server that ran."""
    found = {
        url: called_here("doctor", cwd=tmp_path, env=clean_environment() | {"PENSTOCK_REDIS_URL": url}).stdout
        for url in (without_functions, "redis://127.0.0.1:1")
    }
    assert "this Redis has no functions" in found[without_functions]
    assert "next: use a newer Redis" in found[without_functions]
    assert "next: start it, or correct PENSTOCK_REDIS_URL" in found["redis://127.0.0.1:1"]


def test_a_store_that_is_away_is_said_in_a_sentence_before_the_lines_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: a gateway or worker alone without a Redis wrote lines of JSON for ever, and no sentence."""
    setup.need_sound_store(Settings.load(None, {"PENSTOCK_REDIS_URL": "redis://127.0.0.1:1"}))
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("the job store: Redis cannot be reached")
    assert said.endswith("it is tried until it answers: start it, or correct PENSTOCK_REDIS_URL")


def test_little_room_is_said_and_hardly_any_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: `penstock up` was ready on a disk of 1 MB, and its store died at the first submits."""
    needed = 1 << 60
    settings = Settings.load(
        None, {"PENSTOCK_STORE__RESERVE_BYTES": str(needed), "PENSTOCK_STORE__STATE_DIR": str(tmp_path / "state")}
    )
    setup.need_room(settings)
    assert "nearly full" in capsys.readouterr().err
    monkeypatch.setattr(setup, "_LEAST_ROOM_BYTES", needed)
    with pytest.raises(StartError, match="nearly full"):
        setup.need_room(settings)
