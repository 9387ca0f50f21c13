"""`make first-hour`: a newcomer's path, timed. A fresh clone, a fresh environment, and then every command of the tutorial.

The clone is of the last commit. The commands are those of docs/start/five-minutes.md, and their outputs are compared as in CI,
so what is timed is what the page says. Reading and typing are not in it. `--docs` writes the saved figures into the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from textwrap import fill
from typing import Any

from penstock.loadtest.observed.machine import describe_machine
from tests.blocks.network import own_network, raise_loopback
from tests.blocks.page import steps_of
from tests.blocks.session import PageRun
from tests.markdown import ROOT

PAGE = "docs/start/five-minutes.md"
RESULTS = ROOT / "benchmarks" / "results" / "first_hour.json"
# Seconds from an empty folder on, but for `install_s`, which is a part of them.
TARGETS = {"install_s": 120.0, "answered_s": 180.0, "recovered_s": 300.0}
BEGINS, ENDS = "<!-- first hour: make first-hour -->", "<!-- end of first hour -->"
_ANSWERED, _RECOVERED = "penstock call ", "penstock jobs watch "
_DOWNLOADED = re.compile(r"Downloading \S+ \((\d+(?:\.\d+)?) (kB|MB)\)")
_WIDTH = 120


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.blocks.first_hour", description=__doc__)
    parser.add_argument("--docs", action="store_true", help="measure nothing: write the saved figures into the page")
    parser.add_argument("--inside", nargs=2, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        _walk_page(*asked.inside)
        return
    if not asked.docs:
        measured = measure()
        RESULTS.write_text(json.dumps(measured, indent=1) + "\n")
    found = json.loads(RESULTS.read_text())
    put_into_page(page_text(found))
    print(page_text(found))
    sys.exit(bool(missed(found)))


def measure() -> dict[str, Any]:
    """Take the path once, and return when it got where."""
    with tempfile.TemporaryDirectory(prefix="penstock-first-hour-") as folder:
        began, clone = time.monotonic(), Path(folder, "penstock")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        cloned = time.monotonic()
        installed = _install(clone, Path(folder, "pip.log"))
        ready = time.monotonic()
        took = _walk(clone)
    return {
        "machine": describe_machine(),
        "clone_s": round(cloned - began, 1),
        "install_s": round(ready - cloned, 1),
        **installed,
        "answered_s": round(ready - began + until(took, _ANSWERED), 1),
        "recovered_s": round(ready - began + until(took, _RECOVERED), 1),
    }


def until(took: Mapping[str, float], command: str) -> float:
    """The seconds up to the end of the first command that begins so; `took` has them by line and command, in order."""
    names = list(took)
    last = next(place for place, name in enumerate(names) if name.partition(": ")[2].startswith(command))
    return sum(took[name] for name in names[: last + 1])


def _install(clone: Path, log: Path) -> dict[str, Any]:
    """Type the page's first block in the clone. Every package is downloaded, as on a machine that never had one of them."""
    [block] = [step.block for step in steps_of(clone / PAGE) if step.reason == "installs"]
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = f"set -e\n{block.text}"
    pip = {"PIP_LOG": str(log), "PIP_NO_CACHE_DIR": "1", "PIP_QUIET": "2", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(["bash", "-c", command], cwd=clone, env=env | pip, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"install_cpu_s": round(_cpu_s(after) - _cpu_s(before), 1), **downloads(log.read_text())}


def _cpu_s(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


def downloads(log: str) -> dict[str, Any]:
    """What pip's log says: the seconds until everything was found and downloaded, how much it was, and how many packages."""
    stamped = [line.split(" ", 1) for line in log.splitlines() if re.match(r"\d{4}-\d\d-\d\dT", line)]
    # The last one: those before are of what builds packages.
    complete = [stamp for stamp, text in stamped if text.lstrip().startswith("Installing collected packages")][-1]
    took = datetime.fromisoformat(complete) - datetime.fromisoformat(stamped[0][0])
    sizes = [float(size) * (1.0 if unit == "MB" else 0.001) for size, unit in _DOWNLOADED.findall(log)]
    installed = re.findall(r"Successfully installed (.+)", log)[-1]
    return {
        "download_s": round(took.total_seconds(), 1),
        "download_mb": round(sum(sizes), 1),
        "packages": len(installed.split()),
    }


def _walk(clone: Path) -> dict[str, float]:
    """Run the page with the clone's programs, in a network of its own, where port 8080 is free; return each command's time."""
    inside = ["--inside", str(clone / PAGE), str(clone / ".venv" / "bin")]
    command = [*own_network(), sys.executable, "-m", "tests.blocks.first_hour", *inside]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _walk_page(page: Path, programs: Path) -> None:
    if own_network():
        raise_loopback()
    os.environ["BLOCKS_PROGRAMS"] = str(programs)
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="penstock-page-") as folder:
        run = PageRun(page, Path(folder))
        run.run()
    print(json.dumps(run.counts.seconds))


def missed(found: Mapping[str, Any]) -> list[str]:
    """The targets that a measurement missed."""
    return [name for name, limit in TARGETS.items() if found[name] > limit]


def page_text(found: Mapping[str, Any]) -> str:
    """What the page says of the figures."""
    machine = found["machine"]
    where = f"{machine['cores']} cores ({machine['processor']}), beside a mirror of the registry, {machine['date'][:10]}"
    share = (
        f"{found['download_s']:.0f} s until all {found['packages']} packages, {found['download_mb']:.0f} MB, were downloaded"
    )
    return fill(
        f"`make first-hour` types all this into a fresh clone and times it. On {where}: {found['answered_s']:.0f} s from an "
        f"empty folder to the first answer. Of these, installing took {found['install_s']:.0f} s "
        f"({found['install_cpu_s']:.0f} s of CPU; {share}). All 20 jobs had ended after {found['recovered_s']:.0f} s. "
        + "".join(f"`{name}` missed its target, {TARGETS[name]:.0f} s. " for name in missed(found))
        + "Your reading and typing come on top.",
        _WIDTH,
        break_on_hyphens=False,
    )


def put_into_page(text: str) -> None:
    page = ROOT / PAGE
    head, _, rest = page.read_text().partition(f"{BEGINS}\n")
    tail = rest.partition(ENDS)[2]
    page.write_text(f"{head}{BEGINS}\n\n{text}\n\n{ENDS}{tail}")


if __name__ == "__main__":
    main()
