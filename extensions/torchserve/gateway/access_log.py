"""The lines of TorchServe's front end: one of its access log for each answer, and those of its metrics in log mode.

They go to stdout between the lines of the gateway's own log, as TorchServe writes both to its console. They serve readers of
logs whose patterns were made for TorchServe.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from penstock.gateway.asgi.wire import Scope

# A client's text must stay one field of one line: a space would begin another field, and a line break another line.
_NOT_PLAIN = dict.fromkeys([*range(33), 127, ord('"')], "?")
_MOST_CHARS = 2_000
# In the place of the thread that TorchServe names.
_THREAD = "gateway"


class AccessLog:
    """`write` takes whole lines; by default they go to stdout at once."""

    def __init__(self, write: Callable[[str], None] | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._write = write or _to_stdout
        self._clock = clock
        self._host = socket.gethostname()

    def log(self, scope: Scope, status: int, seconds: float) -> None:
        """One answer: its line in the access log, and what it adds to the count of such answers."""
        now = self._clock()
        client = scope.get("client") or ("", 0)
        target = _target(scope)
        request = f'"{scope["method"]} {target} HTTP/{scope.get("http_version", "1.1")}"'
        head = f"{_moment(now)} [INFO ] {_THREAD}"
        lines = f"{head} ACCESS_LOG - /{client[0]}:{client[1]} {request} {status} {round(seconds * 1e3)}\n"
        if status // 100 in (2, 4, 5):
            counted = f"Requests{status // 100}XX.Count:1.0|#Level:Host|#hostname:{self._host},timestamp:{int(now)}"
            lines += f"{head} TS_METRICS - {counted}\n"
        self._write(lines)


def _target(scope: Scope) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string") or b""
    text = (path + (b"?" + query if query else b"")).decode("latin-1")
    return text[:_MOST_CHARS].translate(_NOT_PLAIN)


def _moment(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S,") + f"{int(now * 1e3) % 1000:03}"


def _to_stdout(lines: str) -> None:
    sys.stdout.write(lines)
    sys.stdout.flush()
