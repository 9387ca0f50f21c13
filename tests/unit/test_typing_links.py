from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKS = ROOT / ".typing" / "penstock"


def expected() -> dict[str, str]:
    """Return the target of each link: one link per sub-package, which includes its folders, and one per file of the root."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
    packages = {name.removeprefix("penstock."): f"../../{folder}" for name, folder in folders.items() if name.count(".") == 1}
    files = [
        path.name for path in (ROOT / folders["penstock"]).iterdir() if path.is_file() and path.suffix in (".py", ".typed")
    ]
    return packages | {name: f"../../{folders['penstock']}/{name}" for name in files}


def test_type_checkers_see_every_sub_package_and_every_file_of_core() -> None:
    found = {link.name: os.readlink(link) for link in LINKS.iterdir() if link.is_symlink()}
    assert found == expected()


def test_nothing_but_links_lies_in_the_folder_of_links() -> None:
    assert [path.name for path in LINKS.iterdir() if not path.is_symlink()] == []
