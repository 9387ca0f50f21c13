"""The models of the fault tests answer with a digest of their input and log every execution to a file of their own.

Input: `{"nonce": str, "do": ..., "seconds": float, "pad": int}`. The log is the truth about what ran: one line per item and
event, `begin|end nonce supervisor-pid pid unix-time`, plus one `call` line per handler call. A handler does not know the id of
its job, so the driver puts a nonce of its own into every input.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import Context, Failure, Handler

_MIB = 1 << 20
WARM_UP = "-"


def digest(order: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(order, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Log:
    """Writes each line with one `write` to a file opened for appending: lines stay whole and in order, and survive any kill."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        os.close(self._fd)

    def note(self, event: str, nonce: str) -> None:
        os.write(self._fd, f"{event} {nonce} {os.getppid()} {os.getpid()} {time.time():.6f}\n".encode())


class Echo(Handler):
    """The model warms up for every batch size, so that full batches come at once; the warm-up is not logged.

    Options: `log` (a path), `warm_s` (seconds per item of the warm-up, where a truthful estimate matters), `fits` (more items
    raise MemoryError), `broken` (a path: while it exists, loading fails), `load_s`, `leak_mib` (kept per call).
    """

    def initialize(self, context: Context, /) -> None:
        options = context.options
        self._context = context
        self.sample = {"nonce": WARM_UP}
        self._log = Log(Path(options["log"]))
        self._log.note("load", "-")
        self._warm_s = float(options.get("warm_s", 0))
        self._fits = int(options.get("fits", 1_000))
        self._leak_mib = int(options.get("leak_mib", 0))
        self._leaked: list[bytes] = []
        if options.get("broken") and Path(options["broken"]).exists():
            raise RuntimeError("the weights are missing")
        time.sleep(float(options.get("load_s", 0)))

    def inference(self, batch: list[Any], /) -> list[Any]:
        if batch[0]["nonce"] == WARM_UP:
            time.sleep(self._warm_s * len(batch))
            return batch
        self._log.note("call", str(len(batch)))
        reports = max(int(order.get("reports", 0)) for order in batch)
        for number in range(reports):
            self._context.progress((number + 1) / (reports + 1))
        if len(batch) > self._fits or any(order.get("do") == "exhaust" for order in batch):
            raise MemoryError(f"{len(batch)} items do not fit")
        if self._leak_mib:
            self._leaked.append(b"\xff" * (self._leak_mib * _MIB))
        return [self._obey(order) for order in batch]

    def _obey(self, order: dict[str, Any]) -> Any:
        self._log.note("begin", order["nonce"])
        deed = _DEEDS.get(order.get("do", "echo"))
        verdict = deed(order) if deed else None
        self._log.note("end", order["nonce"])
        return verdict or {"digest": digest(order), "pad": "x" * int(order.get("pad", 0))}


class Teller(Handler):
    """The model whose answers are streams: `{"chunks": int, "seconds": float}` say how many chunks, and the pause before each.

    A chunk is the name of the run, `supervisor-pid.pid.count`, and its number in it. The output names the run as well.
    """

    def initialize(self, context: Context, /) -> None:
        self._log = Log(Path(context.options["log"]))
        self._log.note("load", "-")
        self._runs = itertools.count()

    def inference(self, batch: list[Any], /) -> Any:
        runs = [f"{os.getppid()}.{os.getpid()}.{next(self._runs)}" for _ in batch]
        for order in batch:
            self._log.note("begin", order["nonce"])
        chunks = [int(order.get("chunks", 0)) for order in batch]
        for number in range(max(chunks)):
            time.sleep(max(order.get("seconds", 0.0) for order in batch))
            yield [[run, number] if number < count else None for run, count in zip(runs, chunks, strict=True)]
        for order in batch:
            self._log.note("end", order["nonce"])
        return [
            {"digest": digest(order), "run": run, "chunks": count}
            for order, run, count in zip(batch, runs, chunks, strict=True)
        ]


def _raise(order: dict[str, Any]) -> None:
    raise ValueError(f"bad item {order['nonce']}")


def _hold_gil(order: dict[str, Any]) -> None:
    """Sleep inside a C call that never lets another thread of this process run."""
    ctypes.PyDLL(None).usleep(int(order["seconds"] * 1e6))


def _kill_worker(order: dict[str, Any]) -> None:
    """Kill the whole worker, as a kernel does that runs out of memory."""
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


_DEEDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "sleep": lambda order: time.sleep(order["seconds"]),
    "raise": _raise,
    "fail": lambda order: Failure("refused", code="refused"),
    "hold_gil": _hold_gil,
    "segfault": lambda order: ctypes.string_at(0),
    "kill_worker": _kill_worker,
}
