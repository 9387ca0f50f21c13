"""A cure is a line of code that docs/production/security.md or docs/why/guarantees.md counts on; without it a test fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The folder of links through which the sub-packages of a checkout are found.
LINKS = "src"
_FAILED = 1
_FELL_SHORT = "FELL SHORT"
_TIMEOUT_S = 900.0
_SCENARIO = ("--alone", "--small", "--system", "penstock")
_PYTEST = ("pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "")


@dataclass(frozen=True, slots=True)
class Cure:
    """In `file`, `text` (which stands there once) becomes `instead`; then one of `tests`, or the scenario `fault`, must fail.

    `line` is the line of the page (A1, F5, ...). `tests` are paths with `::`, as pytest takes them, and stand on the page.
    `fault` is a scenario of tests/faults, with its small counts.
    """

    line: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...] = ()
    fault: str = ""

    def taken_out(self, root: Path) -> str:
        """The file's text without the cure. Raises `ValueError` if the text has moved on."""
        source = (root / self.file).read_text("utf-8")
        places = source.count(self.text)
        if places != 1:
            raise ValueError(f"{self.line}: {self.file} holds {places} times {self.text!r}; adapt the cure to the code")
        return source.replace(self.text, self.instead)


@dataclass(frozen=True, slots=True)
class Noticed:
    """`ended` is the exit code of pytest, or of the scenario: 1 means that it ran and failed."""

    cure: Cure
    ended: int
    output: str

    @property
    def passed(self) -> bool:
        # A scenario that could not even be started ends with 1, too.
        return self.ended == _FAILED and (not self.cure.fault or _FELL_SHORT in self.output)


def copy_of_the_tree(folder: Path) -> Path:
    """A copy of this checkout without what git ignores; links stay links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def try_without(cure: Cure, tree: Path) -> Noticed:
    """Take the cure out of `tree`, run its tests there, and put it back."""
    path = tree / cure.file
    whole = path.read_text("utf-8")
    path.write_text(cure.taken_out(tree), "utf-8")
    arguments = ["tests.faults", cure.fault, *_SCENARIO] if cure.fault else [*_PYTEST, *cure.tests]
    try:
        return Noticed(cure, *_run(arguments, tree))
    finally:
        path.write_text(whole, "utf-8")


def _run(arguments: list[str], tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree / LINKS}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout[-4_000:] + done.stderr[-2_000:]
