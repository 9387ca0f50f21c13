"""`python -m tests.cures [A1 F5 ...]`: takes each cure out of a copy of the tree and says whether a test or a scenario noticed.

Ends with 1 if any cure was not noticed: then the page claims a defence that no test holds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.cures.catalogue import CURES
from tests.cures.cure import Cure, copy_of_the_tree, try_without


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cures", description=__doc__)
    parser.add_argument("lines", nargs="*", help="lines of the pages, such as A1; all, if none is named")
    wanted = set(parser.parse_args(argv).lines)
    chosen = [cure for cure in CURES if not wanted or cure.line in wanted]
    if unknown := wanted - {cure.line for cure in CURES}:
        parser.error(f"no cure is listed for {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_the_tree(Path(folder))
        missed = [cure.line for number, cure in enumerate(chosen, 1) if not _try(cure, tree, f"{number}/{len(chosen)}")]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} noticed" + (f"; not noticed: {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


def _try(cure: Cure, tree: Path, place: str) -> bool:
    began = time.monotonic()
    noticed = try_without(cure, tree)
    words = "noticed" if noticed.passed else f"NOT NOTICED (the tests ended with {noticed.ended})\n{noticed.output}"
    print(f"{place} {cure.line} {cure.file}: {words} after {time.monotonic() - began:.0f} s", flush=True)
    return noticed.passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
