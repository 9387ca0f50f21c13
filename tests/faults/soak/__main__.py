"""`python -m tests.faults.soak`: many minutes of load, runs, cancels and kills; what grows meanwhile, and what does not.

It writes benchmarks/results/soak.json, and with `--docs` the page docs/measurements/soak.md and its picture.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.asker import Question
from tests.faults.soak import picture, report
from tests.faults.soak.events import KEEP_S, KEPT_S, Cancels, Kills, Load, Runs, Stalls
from tests.faults.soak.sampling import Sampler
from tests.faults.stack import Plan, Stack, started

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "soak.json"
PAGE = ROOT / "docs" / "measurements" / "soak.md"
PICTURE = PAGE.with_suffix(".svg")
_NOOP = ROOT / "examples" / "noop.py"
# What Python processes import by themselves lies there.
COLLECTING = Path(__file__).resolve().parent / "collecting"
_TOLD_TO_STOP = 143
_LOOK_S = 0.1
# Sweeps come every second, and a queue of the store's own work may be before them.
_SWEPT_S = 15.0
# The rest is room for what the load needs to begin.
_FULL_S = KEPT_S + 20.0
# What may be left in the store beside what was there before: entries of workers that came later.
_KEYS_LEFT = 100
# What the server compacts of its log by itself, as the embedded server does.
_SERVER = {"auto-aof-rewrite-percentage": "100"}


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """`warm_s`: what is measured before that, and as long after the start of a process as half of that, shows no slope.

    `kept_s`: how long the store keeps anything of a job; as long after the end of the load, it must be nearly empty.
    """

    lasts_s: float
    per_s: float
    kill_every_s: float
    run_pause_s: float
    sample_every_s: float
    warm_s: float
    workers: int = 2
    kept_s: float = KEPT_S
    kills: int = 9


def plan_of(minutes: float, per_s: float) -> SoakPlan:
    """Nine kills, so that each part dies three times, come in the first half; in the second, every process lives on.

    The store reaches its level when it drops tombstones.
    """
    lasts_s = 60.0 * minutes
    return SoakPlan(lasts_s, per_s, lasts_s / 18, lasts_s / 60, min(4.0, lasts_s / 60), max(_FULL_S, lasts_s / 10))


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    if options.docs:
        told = json.loads(options.json.read_text())
        PICTURE.write_text(picture.draw(told))
        report.put_into(PAGE, told)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TOLD_TO_STOP))
    with tempfile.TemporaryDirectory(prefix="penstock-soak-", dir=options.folder) as folder:
        told = soak(plan_of(options.minutes, options.rate), Path(folder), options.json)
    print(told["verdict"])
    return 0 if told["verdict"].startswith("flat:") else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=1_500.0, metavar="PER_SECOND", help="answer-now requests offered")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the report goes")
    parser.add_argument("--folder", type=Path, help="where to work: a real disk, or fsync costs nothing")
    parser.add_argument("--docs", action="store_true", help="measure nothing; draw the saved report for the documents")
    return parser


def soak(plan: SoakPlan, folder: Path, out: Path) -> dict[str, Any]:
    """Return the report, which is also written to `out`."""
    kept = {"result_ttl_s": KEEP_S, "sync_result_ttl_s": KEEP_S}
    model = {"source": str(_NOOP), "max_batch_size": 64, "max_queue_depth": 100_000, **kept}
    processes = Plan(workers=plan.workers, model=model, server=_SERVER, variables={"PYTHONPATH": _path_with_collector()})
    with started(Stack(processes, folder, make=_question)) as stack:
        before = _keys(stack)
        sampler, load, cancels = (
            Sampler(stack, every_s=plan.sample_every_s, kept_s=plan.kept_s),
            Load(stack, folder, per_s=plan.per_s),
            Cancels(stack),
        )
        kills, runs = Kills(stack, every_s=plan.kill_every_s, most=plan.kills), Runs(stack, pause_s=plan.run_pause_s)
        with sampler.running(), cancels.running(), load.running():
            _follow(sampler, (kills, runs, Stalls(stack)), plan.lasts_s)
        runs.stop()
        asked = stack.asker.conclude()
        left = _keys_left(stack, plan.kept_s)
    answers = load.answers()
    facts = {
        "minutes": round(plan.lasts_s / 60, 2),
        "cores": os.cpu_count(),
        "offered_per_s": plan.per_s,
        "right_per_s": round(answers.get("right", 0) / plan.lasts_s, 1),
        "answers": answers,
        "cancels": {str(status): count for status, count in sorted(cancels.answers.items())},
        "runs": {str(code): count for code, count in sorted(runs.ended.items())},
        "kills": dict(kills.done),
        "predictions_beside": dict(asked.answers),
        "results_kept_s": KEEP_S,
        "keys_before": before,
        "keys_left": left,
        "warm_up_s": plan.warm_s,
    }
    odd = [f"{count} requests were answered {kind}" for kind, count in answers.items() if kind not in _EXPECTED]
    if left is not None and left > before + _KEYS_LEFT:
        odd.append(f"{left:,} keys were left in the store {plan.kept_s:g} s after the load, {before} were there before")
    complaints = [*odd, *(text for text in asked.complaints if "grew by" not in text)]
    return report.write(out, facts, sampler.series, warm_s=plan.warm_s, complaints=complaints)


def _keys(stack: Stack) -> int:
    with stack.server.client() as client:
        return int(client.dbsize())


def _keys_left(stack: Stack, kept_s: float) -> int | None:
    """The keys of the store once all jobs are collected; None if `kept_s` is too short for that."""
    if kept_s < KEPT_S:
        return None
    time.sleep(kept_s + _SWEPT_S)
    return _keys(stack)


def _path_with_collector() -> str:
    return os.pathsep.join(filter(None, [str(COLLECTING), os.environ.get("PYTHONPATH", "")]))


_EXPECTED = ("right", "refused", "broken")


def _question() -> Question:
    return Question({"x": 21}, lambda output: bool(output == {"x": 21}))


def _follow(sampler: Sampler, events: Sequence[Kills | Runs | Stalls], lasts_s: float) -> None:
    """Stay on the main thread, since what is started there lives as long as it does."""
    while sampler.now_s() < lasts_s:
        for event in events:
            event.follow()
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
