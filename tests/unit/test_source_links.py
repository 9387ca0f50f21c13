from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKS = ROOT / "src" / "penstock"
# The root's packages that are no part of the installed one.
BESIDE = ("core", "tests", "build", "benchmarks")


def expected() -> dict[str, str]:
    """Return the target of each link: one per root folder, which includes its folders, one per entry of core, the command."""
    folders = [path.parent.name for path in ROOT.glob("*/__init__.py")]
    packages = {name: f"../../{name}" for name in folders if name not in BESIDE}
    entries = [path.name for path in (ROOT / "core").iterdir() if path.name != "__pycache__"]
    return packages | {name: f"../../core/{name}" for name in entries} | {"__main__.py": "../../cli/entry.py"}


def test_type_checkers_see_every_sub_package_and_every_file_of_core() -> None:
    found = {link.name: os.readlink(link) for link in LINKS.iterdir() if link.is_symlink()}
    assert found == expected()


def test_nothing_but_links_lies_in_the_folder_of_links() -> None:
    # Python keeps the bytecode of the modules of core beside the links to them.
    assert [path.name for path in LINKS.iterdir() if not path.is_symlink() and path.name != "__pycache__"] == []
