"""Makes every picture of README and docs: `make pictures`, or `python -m docs.images [--only NAME] [--out FOLDER]`.

Drawings and recorded figures are drawn from what is in the tree. Pages are photographed, and terminals recorded, beside a real
`penstock up` with real jobs; that takes Chromium, and Prometheus for its picture.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from docs.images.catalogue import DRAWN, MEASURED, PHOTOGRAPHED, RECORDED, ROOT
from docs.images.photographs import photograph
from docs.images.recordings import record


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.images", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT, help="folder that gets the pictures by their paths (the tree)")
    parser.add_argument("--only", default="", help="pictures whose path has this text")
    parser.add_argument("--skip", default=[], action="append", help="no pictures whose path has this text; may be repeated")
    parser.add_argument("--processes", type=int, default=1, help="how many recordings and stacks at once (1)")
    asked = parser.parse_args()
    wanted = {
        name
        for name in (*DRAWN, *PHOTOGRAPHED, *RECORDED)
        if asked.only in name and not any(text in name for text in asked.skip)
    }
    missing = make(asked.out, wanted, asked.processes)
    sys.exit(f"left out: {', '.join(missing)}" if missing else 0)


def make(out: Path, wanted: set[str], processes: int) -> list[str]:
    """Make these pictures; return those that could not be made, with what is missing."""
    for name in wanted:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
    for name in sorted(wanted & DRAWN.keys()):
        (out / name).write_text(DRAWN[name](), "utf-8")
        print(f"drawn         {name}")
    for name in sorted(MEASURED):
        print(f"kept          {name}: `{MEASURED[name]}` draws it from a measurement")
    with ThreadPoolExecutor(processes) as pool:
        missing = pool.submit(_photographed, out, wanted & PHOTOGRAPHED.keys())
        list(pool.map(partial(_record, out), sorted(wanted & RECORDED.keys())))
        return missing.result()


def _record(out: Path, name: str) -> None:
    (out / name).write_text(record(ROOT, name, RECORDED[name]), "utf-8")
    print(f"recorded      {name}")


def _photographed(out: Path, wanted: set[str]) -> list[str]:
    needed = ["chromium"] * bool(wanted) + ["prometheus"] * any("prometheus" in name for name in wanted)
    lacking = [program for program in needed if not shutil.which(program)]
    left = {name for name in wanted if "chromium" in lacking or ("prometheus" in lacking and "prometheus" in name)}
    if wanted - left:
        with tempfile.TemporaryDirectory(prefix="penstock-pictures-") as folder:
            photograph(Path(folder), out, {name: one for name, one in PHOTOGRAPHED.items() if name in wanted - left})
    return [f"{name} (needs {' and '.join(lacking)})" for name in sorted(left)]


if __name__ == "__main__":
    main()
