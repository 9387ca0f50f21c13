"""`python -m benchmarks.experiments.lone_path`: what a lone request waits for, in microseconds per step.

It writes benchmarks/results/lone_path.json, and with `--docs` the tables of docs/measurements/lone_path.md.
The exit status is 1 if the steps do not add up to what the client saw.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.experiments.lone_path.measuring import measure
from benchmarks.experiments.lone_path.report import is_sound, markdown, put_into

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "lone_path.json"
PAGE = ROOT / "docs" / "measurements" / "lone_path.md"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.docs:
        put_into(PAGE, json.loads(options.json.read_text()))
        return 0
    with tempfile.TemporaryDirectory(prefix="penstock-lone-path-", dir=options.folder) as folder:
        told = measure(Path(folder), seconds=options.seconds, pause_s=options.pause_ms / 1e3)
    options.json.write_text(json.dumps(told, indent=1) + "\n")
    print(markdown(told))
    return 0 if is_sound(told) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.lone_path", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all turns together")
    parser.add_argument("--pause-ms", type=float, default=5.0, help="how long the system rests before each request")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go")
    parser.add_argument("--folder", type=Path, help="where to work: a real disk, or a sync costs nothing")
    parser.add_argument("--docs", action="store_true", help="measure nothing; write the saved figures into the page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
