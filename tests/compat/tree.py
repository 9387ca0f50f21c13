"""Trees whose processes are started: this one, one of a commit, and this one with another protocol version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from penstock.broker import protocol

ROOT = Path(__file__).parents[2]
PINNED = Path(__file__).with_name("pinned.txt")
_KEPT = ROOT / "build" / "compat"
# The tree before protocol versions.
UNVERSIONED = "f58d02eb2bdaadc6e8728d1cc1b12e0cb0178c92"


class CommitMissing(Exception):
    """This clone does not have the commit."""


@dataclass(frozen=True)
class Tree:
    """A checkout, or a folder with the same `src`. `packages` has what an installer writes of it: its entry points."""

    name: str
    folder: Path
    packages: Path

    @property
    def env(self) -> dict[str, str]:
        """The variables with which this interpreter runs the tree, in children too."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name != "REDIS_URL"}
        return {**kept, "PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self.packages}", "PYTHONDONTWRITEBYTECODE": "1"}


def this_tree() -> Tree:
    return _installed("this tree", ROOT)


def pinned_tree() -> Tree:
    """The tree of the commit that pinned.txt names. Raises `CommitMissing`."""
    commit = PINNED.read_text("ascii").strip()
    return tree_of(commit, f"the pinned {commit[:12]}")


def tree_of(commit: str, name: str) -> Tree:
    """The tree of a commit, written to build/compat once. Raises `CommitMissing`."""
    found = _git("rev-parse", "--verify", f"{commit}^{{commit}}")
    if found.returncode:
        raise CommitMissing(
            f"this clone lacks commit {commit}, which tests/compat starts beside this tree; fetch its history with "
            f"`git fetch --unshallow` ({found.stderr.decode(errors='replace').strip()})"
        )
    folder = _KEPT / found.stdout.decode().strip()
    if not folder.exists():
        archive = _git("archive", folder.name)
        _KEPT.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=_KEPT))
        subprocess.run(["tar", "-x", "-C", str(fresh)], input=archive.stdout, check=True)
        fresh.rename(folder)
    return _installed(name, folder)


def is_whole() -> bool:
    """Whether this clone has the history of its commits; a shallow clone and a source archive have not."""
    return _git("rev-parse", "--is-shallow-repository").stdout.strip() == b"false"


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)


def next_protocol(folder: Path) -> Tree:
    """This tree with the next protocol version, which reads no form of the one before."""
    package = folder / "src" / "penstock"
    package.mkdir(parents=True)
    for link in (ROOT / "src" / "penstock").iterdir():
        (package / link.name).symlink_to(link.resolve())
    (package / "broker").unlink()
    shutil.copytree(ROOT / "broker", package / "broker", ignore=shutil.ignore_patterns("__pycache__"))
    module = package / "broker" / "protocol.py"
    now, later = f"PROTOCOL, OLDEST = {protocol.PROTOCOL}, {protocol.OLDEST}\n", protocol.PROTOCOL + 1
    text = module.read_text("utf-8")
    assert text.count(now) == 1, f"{module} no longer has {now!r}"
    module.write_text(text.replace(now, f"PROTOCOL, OLDEST = {later}, {later}\n"), "utf-8")
    return Tree("the next protocol version", folder, _installed("", ROOT).packages)


def _installed(name: str, folder: Path) -> Tree:
    """Write what importlib.metadata reads: found before what is installed for this interpreter."""
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    packages = _KEPT / f"packages-of-{folder.name}"
    info = packages / "penstock_inference-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project.get("entry-points", {}).items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{name} = {at}" for name, at in points.items()))]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]))
    return Tree(name, folder, packages)


PYTHON = sys.executable
