"""The packages that an archive's requirements name, installed into an environment of their own that sees the worker's packages.

Only where the settings allow it, because pip runs code of what it builds. What was installed is an entry of the models' cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import signal
import site
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from penstock.errors import HandlerLoadError
from penstock.model_cache.entries import Entries, Entry, Lock, entry_name
from penstock.process_lifetime import parent_binding
from penstock.words import duration

INSTALL_LIMIT_S = 900.0
_LAST_LINES = 8
_LINE_CHARS = 300
_READ_BYTES = 1 << 16
_LOOK_S = 1.0
# What pip may know of the worker's environment: how to reach an index, and how to build. Nothing of the store's.
_PASSED = re.compile(r"PATH|HOME|LANG|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|PIP_\w+|CC|CXX|SSL_CERT_\w+|REQUESTS_CA_BUNDLE")
_PROXIES = re.compile(r"(https?|no|all)_proxy", re.IGNORECASE)
OnLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PackageOrder:
    """`digest` is the archive's. `on_line` gets each line that pip writes; after `limit_s` seconds pip is ended."""

    model: str
    requirements: Path
    digest: str
    on_line: OnLine
    limit_s: float = INSTALL_LIMIT_S


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
        _run(order, [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(entry.files)])
        _add_ours(_packages(entry))
        python = entry.files / "bin" / "python"
        quiet = ("--disable-pip-version-check", "--no-input", "--no-compile", "--no-warn-script-location")
        _run(order, [sys.executable, "-m", "pip", "--python", str(python), "install", *quiet, "-r", str(order.requirements)])
        size_bytes = sum(path.stat().st_size for path in entry.files.rglob("*") if path.is_file() and not path.is_symlink())
        entries.complete(entries.begin(name, source, "", size_bytes))
    finally:
        # After success there is none.
        entries.drop_partial(name)


def _packages(entry: Entry) -> Path:
    return entry.files / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _add_ours(packages: Path) -> None:
    """The worker may run in an environment itself, and the system's packages are not that one's."""
    ours = [folder for folder in [*site.getsitepackages(), site.getusersitepackages()] if Path(folder).is_dir()]
    (packages / "worker.pth").write_text("".join(f"{folder}\n" for folder in ours), "utf-8")


def _run(order: PackageOrder, command: Sequence[str]) -> None:
    until = time.monotonic() + order.limit_s
    last: deque[str] = deque(maxlen=_LAST_LINES)
    process = _started(command, order.requirements.parent)
    try:
        for line in _lines(process, until):
            last.append(line[:_LINE_CHARS])
            order.on_line(line[:_LINE_CHARS])
        code = process.wait(timeout=max(0.0, until - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise _failed(order, f"pip was ended after {duration(order.limit_s)}", last) from None
    finally:
        _end(process)
    if code:
        raise _failed(order, f"pip ended with exit code {code}", last)


def _started(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name) or _PROXIES.fullmatch(name)}
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


def _lines(process: subprocess.Popen[bytes], until: float) -> Iterator[str]:
    """What the process writes, until it closes its output. Raises `TimeoutError` at `until` (monotonic)."""
    assert process.stdout is not None
    fd, half = process.stdout.fileno(), b""
    while True:
        if time.monotonic() >= until:
            raise TimeoutError
        if not select.select([fd], [], [], _LOOK_S)[0]:
            continue
        data = os.read(fd, _READ_BYTES)
        *whole, half = (half + data).split(b"\n")
        yield from (text for line in whole if (text := line.decode(errors="replace").strip()))
        half = half[-_READ_BYTES:]
        if not data:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End pip and whatever it started."""
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
