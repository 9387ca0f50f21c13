"""`python -m tests.compat [COMMIT]`: upgrades a stack of a commit to this tree and back under load, and says what that cost.

The commit is the one in `pinned.txt` unless another is named. Ends with 1 if anything was lost, ran twice or was refused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.compat.pair import upgrade_and_back
from tests.compat.tree import CommitMissing, pinned_tree, this_tree, tree_of


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    parser.add_argument("commit", nargs="?", default="", help="all 40 digits, or a name that git knows")
    commit = parser.parse_args(argv).commit
    try:
        old = tree_of(commit, commit) if commit else pinned_tree()
    except CommitMissing as missing:
        print(missing)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        cost = upgrade_and_back(Path(folder) / "scene", old, this_tree())
    print(f"{old.name} to this tree and back: {cost}")
    for fault in cost.faults:
        print(f"  {fault}")
    return 1 if cost.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
