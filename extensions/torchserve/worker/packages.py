"""The packages that an archive's requirements name, installed into an environment of their own that sees the worker's packages.

Only where the settings allow it, because pip runs code of what it builds. What was installed is an entry of the models' cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import shutil
import signal
import site
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from penstock.errors import HandlerLoadError
from penstock.model_cache.entries import Entries, Entry, Lock, entry_name
from penstock.process_lifetime import parent_binding
from penstock.words import duration, size

# How often the room that pip has taken is measured: adding up some thousand files takes milliseconds.
_SIZE_EVERY_S = 5.0
_LAST_LINES = 8
_LINE_CHARS = 300
_READ_BYTES = 1 << 16
_LOOK_S = 1.0
# The variables that pip gets of the worker's: how to reach an index, and how to build. None of the store's.
_PASSED = re.compile(r"PATH|HOME|LANG|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|PIP_\w+|CC|CXX|SSL_CERT_\w+|REQUESTS_CA_BUNDLE")
_PROXIES = re.compile(r"(https?|no|all)_proxy", re.IGNORECASE)
OnLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PackageOrder:
    """`digest` is the archive's. `on_line` gets each line that pip writes. pip is ended after `limit_s` seconds, and when what
    it has written has more than `max_bytes`.
    """

    model: str
    requirements: Path
    digest: str
    on_line: OnLine
    limit_s: float = 900.0
    max_bytes: int = 10 << 30


def installed(order: PackageOrder, entries: Entries) -> tuple[Path, Lock]:
    """The folder with the packages, which stays in the cache while the lock is held; they are installed if they are not there.

    Raises `HandlerLoadError` with what pip said last.
    """
    source = f"packages://{order.model}#sha256={_content(order)}"
    name = entry_name(source)
    entry, lock = entries.held(name, lambda: _fill(order, entries, name, source))
    return _packages(entry), lock


def _content(order: PackageOrder) -> str:
    """What decides which packages come: the archive, this Python, and what is installed beside it already."""
    own = order.digest or f"{order.requirements} {order.requirements.read_bytes()!r}"
    ours = sorted({f"{one.name}=={one.version}" for one in distributions()})
    return hashlib.sha256("\n".join([own, sys.version, sys.platform, *ours]).encode()).hexdigest()


def _fill(order: PackageOrder, entries: Entries, name: str, source: str) -> None:
    entries.drop_partial(name)
    try:
        entry = entries.begin(name, source, "", 0)
        room = _Room(entry.files, order.max_bytes)
        _run(order, [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(entry.files)], room)
        _add_ours(_packages(entry))
        python = entry.files / "bin" / "python"
        quiet = ("--disable-pip-version-check", "--no-input", "--no-compile", "--no-warn-script-location")
        install = ["-m", "pip", "--python", str(python), "install", *quiet, "-r", str(order.requirements)]
        _run(order, [sys.executable, *install], room)
        entries.complete(entries.begin(name, source, "", room.taken()))
    finally:
        # After success there is no partial entry.
        entries.drop_partial(name)


class _TooLarge(Exception):
    """What pip has written takes more room than the settings allow."""


class _Room:
    """What pip writes into a folder: the packages, and the files beside them that it builds and unpacks."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self._max_bytes = folder, max_bytes
        self._look_at = 0.0
        # pip downloads and builds here, so that it counts too.
        self.scratch = folder / ".pip"

    def taken(self) -> int:
        total = 0
        for path in self.folder.rglob("*"):
            # pip deletes files meanwhile.
            with suppress(OSError):
                total += path.lstat().st_size if not path.is_dir() else 0
        return total

    def check(self, now: float, *, is_over: bool = False) -> None:
        """Raises `_TooLarge`; looks every few seconds, and at the end."""
        if now < self._look_at and not is_over:
            return
        self._look_at = now + _SIZE_EVERY_S
        if self.taken() > self._max_bytes:
            raise _TooLarge


def _packages(entry: Entry) -> Path:
    return entry.files / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _add_ours(packages: Path) -> None:
    """The worker may itself run in a virtual environment, whose packages a new environment does not see."""
    ours = [folder for folder in [*site.getsitepackages(), site.getusersitepackages()] if Path(folder).is_dir()]
    (packages / "worker.pth").write_text("".join(f"{folder}\n" for folder in ours), "utf-8")


def _run(order: PackageOrder, command: Sequence[str], room: _Room) -> None:
    until = time.monotonic() + order.limit_s
    last: deque[str] = deque(maxlen=_LAST_LINES)
    process = _started(command, order.requirements.parent, room.scratch)
    try:
        for line in _lines(process, until, room):
            last.append(line[:_LINE_CHARS])
            order.on_line(line[:_LINE_CHARS])
        code = process.wait(timeout=max(0.0, until - time.monotonic()))
        room.check(time.monotonic(), is_over=True)
    except (TimeoutError, subprocess.TimeoutExpired):
        why = f"pip was ended after {duration(order.limit_s)}, the most that it may take"
        raise _failed(order, why, last) from None
    except _TooLarge:
        why = f"it takes more than {size(order.max_bytes)}, a fifth of models_cache.max_bytes"
        raise _failed(order, why, last) from None
    finally:
        _end(process)
        shutil.rmtree(room.scratch, ignore_errors=True)
    if code:
        raise _failed(order, f"pip ended with exit code {code}", last)


def _started(command: Sequence[str], folder: Path, scratch: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name) or _PROXIES.fullmatch(name)}
    scratch.mkdir(parents=True, exist_ok=True)
    environment["TMPDIR"] = str(scratch)
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=parent_binding(os.getpid(), death_signal=signal.SIGTERM, exit_code=1),  # noqa: PLW1509  takes no lock
    )


def _lines(process: subprocess.Popen[bytes], until: float, room: _Room) -> Iterator[str]:
    """What the process writes, until it closes its output. Raises `TimeoutError` at `until` (monotonic), and `_TooLarge`."""
    assert process.stdout is not None
    fd, half = process.stdout.fileno(), b""
    while True:
        if time.monotonic() >= until:
            raise TimeoutError
        room.check(time.monotonic())
        if not select.select([fd], [], [], _LOOK_S)[0]:
            continue
        data = os.read(fd, _READ_BYTES)
        *whole, half = (half + data).split(b"\n")
        yield from (text for line in whole if (text := line.decode(errors="replace").strip()))
        half = half[-_READ_BYTES:]
        if not data:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End pip and all processes that it started."""
    assert process.stdout is not None
    process.stdout.close()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failed(order: PackageOrder, why: str, last: Sequence[str]) -> HandlerLoadError:
    said = " | ".join(last)
    return HandlerLoadError(
        f"Custom pip package installation failed for model {order.model}: {why}{f'; it wrote last: {said}' if said else ''}",
        hint=f"correct {order.requirements.name} in the archive, or install the packages beside penstock and leave "
        "install_py_dep_per_model out",
    )
