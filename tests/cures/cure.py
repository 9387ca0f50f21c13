"""A cure is a line of code that docs/security.md or docs/guarantees.md counts on; without it, a test of that page must fail."""

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
_TESTS_FAILED = 1
_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Cure:
    """In `file`, `text` (which stands there once) becomes `instead`; then at least one of `tests` must fail.

    `line` is the line of the page (A1, F5, ...). `tests` are paths with `::`, as pytest takes them, and stand in that line.
    """

    line: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]

    def taken_out(self, root: Path) -> str:
        """The file's text without the cure. Raises `ValueError` if the text has moved on."""
        source = (root / self.file).read_text("utf-8")
        places = source.count(self.text)
        if places != 1:
            raise ValueError(f"{self.line}: {self.file} holds {places} times {self.text!r}; adapt the cure to the code")
        return source.replace(self.text, self.instead)


@dataclass(frozen=True, slots=True)
class Noticed:
    """`ended` is pytest's exit code: 1 means that tests ran and failed."""

    cure: Cure
    ended: int
    output: str

    @property
    def passed(self) -> bool:
        return self.ended == _TESTS_FAILED


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
    try:
        return Noticed(cure, *_run(cure.tests, tree))
    finally:
        path.write_text(whole, "utf-8")


def _run(tests: tuple[str, ...], tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", *tests],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree / LINKS}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout[-4_000:] + done.stderr[-2_000:]
