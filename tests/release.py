"""What a release needs: `python -m tests.release` builds wheel and sdist, checks them, and runs the tutorial from the wheel.

The wheel is installed into two environments, with the versions of constraints.txt: with the extra `serve`, and alone.
Nothing is uploaded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from penstock.errors import PenstockError
from tests.release_client import check_application, check_client

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "start" / "five-minutes.md"
# What is not part of the wheel.
BESIDE = ("tests", "build", "benchmarks", "src")
TOP_FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in BESIDE)
_FILES = ("pyproject.toml", "README.md", "LICENSE")
_HEADING = re.compile(r"^## (?P<version>\d\S*) \((?P<date>unreleased|\d{4}-\d\d-\d\d)\)$", re.MULTILINE)


def main() -> int:
    """0: a release could be made of this tree; 1: what stands in the way was printed."""
    try:
        version = agreed_version(
            tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"], (ROOT / "CHANGELOG.md").read_text()
        )
        with tempfile.TemporaryDirectory(prefix="penstock-release-") as folder:
            _check(Path(folder), version)
    except PenstockError as error:
        print(f"release-check: {error}", file=sys.stderr)
        return 1
    print(f"penstock {version} could be released")
    return 0


def agreed_version(version: str, changelog: str) -> str:
    """The version, which the changelog describes first. Raises `PenstockError` if it does not."""
    newest = _HEADING.search(changelog)
    if newest is None:
        raise PenstockError("CHANGELOG.md has no heading of a version: write `## 1.2.3 (unreleased)`, or with its day")
    if newest["version"] != version:
        raise PenstockError(
            f"pyproject.toml says version {version}, CHANGELOG.md describes {newest['version']} first: make both the same"
        )
    return version


def _check(folder: Path, version: str) -> None:
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {what}", flush=True)

    built = sorted(build_distributions(folder / "source").iterdir())
    say(f"built {', '.join(f'{path.name} ({path.stat().st_size / 1e6:.1f} MB)' for path in built)}")
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built))
    say("twine has nothing against their metadata")
    [wheel] = [path for path in built if path.suffix == ".whl"]
    programs = _installed(f"{wheel}[serve]", folder / "environment")
    say("the wheel is installed in an environment of its own")
    told = _run(str(programs / "penstock"), "--version", env=_plain())
    if version not in told:
        raise PenstockError(f"`penstock --version` of the wheel says {told.strip()!r}, not {version}")
    ran = _run(sys.executable, "-m", "tests.blocks", str(TUTORIAL), env=_plain() | {"BLOCKS_PROGRAMS": str(programs)})
    say(f"the tutorial runs from it: {ran.strip()}")
    alone = _installed(str(wheel), folder / "client")
    run = partial(_run, env=_plain())
    say(check_client(alone, run))
    say(check_application(alone, programs, run))


def build_distributions(copy: Path) -> Path:
    """The folder with sdist and wheel; the wheel is built from the sdist. From a copy, because a build leaves files."""
    copy.mkdir()
    for folder in (*TOP_FOLDERS, "src"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        shutil.copy(ROOT / name, copy / name)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", cwd=copy)
    return copy / "dist"


def _installed(requirement: str, environment: Path) -> Path:
    """The folder of the programs of a new environment with this wheel and its extras."""
    _run(sys.executable, "-m", "venv", str(environment))
    programs = environment / "bin"
    constraints = str(ROOT / "constraints.txt")
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, requirement, "-c", constraints, env=_plain())
    return programs


def _plain() -> dict[str, str]:
    """This environment without what would lead a process to the sources instead of the wheel."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def _run(*command: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """What the command printed. Raises `PenstockError` with that if the command fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PenstockError(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
