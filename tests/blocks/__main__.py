"""Runs every block of pages, and compares what they show: `python -m tests.blocks README.md docs/start/five-minutes.md`."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.blocks.pages import BLOCK_PAGES
from tests.blocks.running import run_inside, run_page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.blocks", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="by default all pages with blocks")
    parser.add_argument("--processes", type=int, default=2, help="how many pages at once (2)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        return run_inside(asked.pages[0])
    failed = 0
    with ThreadPoolExecutor(asked.processes) as pool:
        for outcome in pool.map(run_page, [page.resolve() for page in asked.pages] or BLOCK_PAGES):
            print(outcome, *outcome.slow, sep="\n    ", flush=True)
            failed += bool(outcome.failure)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
