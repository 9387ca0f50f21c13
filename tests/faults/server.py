"""A Valkey server of the test's own on a loopback port, which a test can kill, freeze, cut short and start again."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import redis

from penstock.embedded.server import find_server
from penstock.loadtest.stack import free_port
from tests.eventually import eventually
from tests.faults.shims import Fsync, build, read_notes
from tests.hosts import LOOPBACK, Host

UNLIMITED = resource.RLIM_INFINITY


class ServerEnded(AssertionError):
    """The server ended before it answered, for instance because its port was taken meanwhile."""


class Server:
    """The data stays in `folder` between starts. `extra` are more options of the server, by name."""

    def __init__(
        self, folder: Path, *, fsync: str = "always", extra: Mapping[str, str] | None = None, host: Host = LOOPBACK
    ) -> None:
        self.folder = folder
        self.host = host
        self.port = free_port()
        self._fsync = fsync
        self._extra = dict(extra or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"redis://{self.host.address}:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, ready_s: float = 20.0) -> None:
        """Start the server, and return once it answers with its data loaded."""
        self.host.join()
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "valkey.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
                # Python ignores SIGXFSZ. The server inherits that, so a write past RLIMIT_FSIZE fails as on a full disk.
                restore_signals=False,
            )
        eventually(lambda: self.answers() or not self.running, timeout_s=ready_s)
        if not self.running:
            raise ServerEnded((self.folder / "valkey.log").read_text("utf-8", "replace")[-1_000:])

    def _command(self) -> list[str]:
        options = {
            "dir": str(self.folder),
            "bind": self.host.address,
            # Of hosts that are namespaces, only those of the test reach each other.
            "protected-mode": "yes" if self.host == LOOPBACK else "no",
            "port": str(self.port),
            "save": "",
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "aof-load-truncated": "yes",
            # One log file serves for the whole life, so that a position in that file keeps its meaning.
            "auto-aof-rewrite-percentage": "0",
            "maxmemory-policy": "noeviction",
            **self._extra,
        }
        return [
            *self.host.within,
            str(find_server()),
            *(word for name, value in options.items() for word in (f"--{name}", value)),
        ]

    def follow(self, primary: Server) -> None:
        """Be a replica of this server from the next start on."""
        self._extra["replicaof"] = f"{primary.host.address} {primary.port}"

    def announce(self, port: int) -> None:
        """As a replica, give this as its port to others, from the next start on."""
        self._extra["replica-announce-port"] = str(port)

    def answers(self) -> bool:
        with contextlib.suppress(redis.RedisError, OSError), self.client(timeout_s=1.0) as client:
            return bool(client.ping())
        return False

    def client(self, *, timeout_s: float = 5.0) -> redis.Redis:
        return redis.Redis(host=self.host.address, port=self.port, socket_timeout=timeout_s)

    def kill(self) -> None:
        """Kill the server as a power button does, except that the kernel still writes what it has."""
        self.signal(signal.SIGKILL)
        self.wait()

    def lose(self) -> None:
        """Lose the whole host: where it has a link of its own, nobody hears of the server's end."""
        self.host.cut()
        self.kill()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 20.0) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()

    @property
    def log_file(self) -> Path:
        [path] = (self.folder / "appendonlydir").glob("*.incr.aof")
        return path

    def note_fsyncs(self, folder: Path) -> None:
        """Write down what each fsync covers, from the next start on; raises `NoCompiler`."""
        self.environment |= {"LD_PRELOAD": str(build("fsyncs", folder)), "FSYNC_NOTES": str(folder / "fsyncs.txt")}

    def last_fsync(self) -> Fsync:
        """Return what was surely on the disk when the power went."""
        inode = self.log_file.stat().st_ino
        return max(
            (note for note in read_notes(Path(self.environment["FSYNC_NOTES"])) if note.inode == inode),
            key=lambda note: note.size,
        )

    def cut(self, size: int) -> int:
        """Cut the log off at `size`, and return how many bytes that removes."""
        lost = self.log_file.stat().st_size - size
        os.truncate(self.log_file, size)
        return lost

    def limit_files(self, size: int) -> None:
        """Let no file of the server grow past `size` bytes from now on, as if the disk were full."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, UNLIMITED))
