from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kombu.connection import Connection
from redis import Redis

from penstock.embedded.server import EmbeddedServer, ask, find_server
from penstock.embedded.state_folder import is_full
from penstock.errors import ConfigError, StoreUnavailable
from tests.eventually import eventually

PARENT = """
import sys, time
from pathlib import Path
from penstock.embedded.server import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
server.start()
print(server.pid, server.url, flush=True)
time.sleep(60)
"""


@contextmanager
def connected(server: EmbeddedServer) -> Iterator[Redis]:
    with Redis.from_url(server.url) as redis:
        yield redis


@contextmanager
def parent_process(state_dir: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start another process that holds a server; yield that process and the server's process id."""
    with subprocess.Popen([sys.executable, "-c", PARENT, str(state_dir)], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            yield parent, int(parent.stdout.readline().split()[0])
        finally:
            parent.kill()


def ended(pid: int) -> bool:
    """Return whether the process is gone, or a zombie that nobody in this container reaps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_data_is_found_again_by_the_next_server(state_dir: Path) -> None:
    with EmbeddedServer(state_dir) as first, connected(first) as redis:
        redis.set("kept", "1")
    with EmbeddedServer(state_dir) as second, connected(second) as redis:
        assert redis.get("kept") == b"1"


def test_what_was_answered_survives_a_kill_of_the_server(state_dir: Path) -> None:
    with EmbeddedServer(state_dir) as server:
        with connected(server) as redis:
            for number in range(100):
                redis.rpush("kept", number)
        os.kill(server.pid or 0, signal.SIGKILL)
        eventually(server.check)
        with connected(server) as redis:
            assert redis.llen("kept") == 100
        assert server.check() is False


def test_a_server_that_keeps_dying_is_given_up_with_the_end_of_its_log(state_dir: Path) -> None:
    with EmbeddedServer(state_dir) as server:
        with pytest.raises(StoreUnavailable, match="times in a row"):  # noqa: PT012
            for _ in range(20):
                os.kill(server.pid or 0, signal.SIGKILL)
                eventually(server.check)
        assert "Ready to accept" in server.log_path.read_text()


def test_it_keeps_every_promise_of_its_settings(state_dir: Path) -> None:
    with EmbeddedServer(state_dir, maxmemory_bytes=50_000_000) as server, connected(server) as redis:
        wanted = {
            "appendonly": "yes",
            "appendfsync": "always",
            "aof-load-truncated": "yes",
            "save": "",
            "maxmemory": "50000000",
            "maxmemory-policy": "noeviction",
            "port": "0",
        }
        assert {key: redis.config_get(key)[key] for key in wanted} == wanted
    with EmbeddedServer(state_dir, fsync="everysec") as server, connected(server) as redis:
        assert redis.config_get("appendfsync") == {"appendfsync": "everysec"}


def test_only_its_owner_can_reach_it(state_dir: Path) -> None:
    with EmbeddedServer(state_dir) as server:
        assert server.socket_path.stat().st_mode & 0o077 == 0
        assert server.socket_path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_parent_takes_its_server_along(state_dir: Path) -> None:
    with parent_process(state_dir) as (parent, server_pid):
        parent.kill()
        parent.wait()
        eventually(lambda: ended(server_pid))
    with EmbeddedServer(state_dir) as server, connected(server) as redis:
        assert redis.ping()


def test_a_second_start_on_the_folder_is_refused_while_the_first_lives(state_dir: Path) -> None:
    with parent_process(state_dir) as (parent, server_pid):
        with pytest.raises(ConfigError, match=rf"in use by another penstock \(process {parent.pid}\)"):
            EmbeddedServer(state_dir).start()
        assert not ended(server_pid)


def test_the_lock_is_freed_by_stop_and_not_handed_to_the_server(state_dir: Path) -> None:
    server = EmbeddedServer(state_dir)
    server.start()
    server.stop()
    server.stop()
    with (state_dir / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_server_left_by_a_dead_parent_is_ended_first_and_its_data_kept(state_dir: Path) -> None:
    (state_dir / "valkey").mkdir(parents=True, mode=0o700)
    command = EmbeddedServer(state_dir)._command(find_server())
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as leftover:
        eventually(lambda: ask(EmbeddedServer(state_dir).socket_path, b"SET kept 1\r\n") == b"+OK\r\n")
        with EmbeddedServer(state_dir) as server, connected(server) as redis:
            assert leftover.wait(10) == 0
            assert redis.get("kept") == b"1"


def test_a_leftover_that_does_not_answer_is_never_joined_by_a_second_server(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.embedded.server._STOP_TIMEOUT_S", 0.3)
    (state_dir / "valkey").mkdir(parents=True, mode=0o700)
    server = EmbeddedServer(state_dir)
    with subprocess.Popen(server._command(find_server()), stdout=subprocess.DEVNULL) as leftover:
        eventually(lambda: ask(server.socket_path, b"PING\r\n"))
        leftover.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable, match="does not end"):
                server.start()
        finally:
            leftover.kill()


def test_a_stale_socket_file_is_no_hindrance(state_dir: Path) -> None:
    with EmbeddedServer(state_dir) as server:
        os.kill(server.pid or 0, signal.SIGKILL)
    assert server.socket_path.exists()
    with EmbeddedServer(state_dir) as server, connected(server) as redis:
        assert redis.ping()


def test_a_deep_folder_gets_a_short_socket_of_its_own(tmp_path: Path, state_dir: Path) -> None:
    deep = state_dir / ("d" * 60) / ("e" * 60)
    with EmbeddedServer(deep) as server, connected(server) as redis:
        assert redis.ping()
        assert len(str(server.socket_path)) < 100
        assert server.socket_path != EmbeddedServer(deep / "other").socket_path
        assert (deep / "valkey" / "appendonlydir").is_dir()


def test_celery_and_redis_clients_reach_it_even_with_odd_characters_in_the_path(state_dir: Path) -> None:
    with EmbeddedServer(state_dir / "a b%c#d") as server, connected(server) as redis:
        assert redis.ping()
        with Connection(server.celery_url) as celery:  # type: ignore[no-untyped-call]
            celery.SimpleQueue("q").put("hello")
        assert redis.llen("q") == 1


def test_a_server_that_cannot_start_says_why(state_dir: Path) -> None:
    folder = state_dir / "valkey" / "appendonlydir"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof.manifest").write_text("file nonsense\n")
    with pytest.raises(StoreUnavailable, match="ended at start"):
        EmbeddedServer(state_dir).start()
    with pytest.raises(StoreUnavailable, match="AOF"):
        EmbeddedServer(state_dir).start()


def test_without_a_packaged_server_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("penstock.embedded.server._PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match="PENSTOCK_REDIS_URL"):
        EmbeddedServer(tmp_path).start()
    monkeypatch.undo()
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ConfigError, match=r"riscv64.*docker compose"):
        EmbeddedServer(tmp_path).start()


def test_a_disk_without_room_is_recognized(state_dir: Path) -> None:
    assert not is_full(state_dir.parent)
    # A file system without a single block.
    assert is_full(Path("/proc"))
