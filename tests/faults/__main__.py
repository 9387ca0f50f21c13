"""`python -m tests.faults`: inject faults into real processes and print the score sheet."""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.faults import sheet
from tests.faults.catalogue import CELERY, PENSTOCK, Fault, Setting
from tests.faults.checker import Verdict
from tests.faults.meter import DISTURBED, USUAL_S, Meter, adopt_orphans, expected_s
from tests.faults.scenarios import every_fault
from tests.faults.shims import NoCompiler

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "faults.json"
DOCS = ROOT / "docs" / "why" / "guarantees.md"
_TOLD_TO_STOP = 143


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    if options.json is None and not options.small:
        options.json = RESULTS
    if options.markdown or options.docs:
        print(sheet.markdown(options.json or RESULTS))
        if options.docs:
            sheet.put_into(DOCS, options.json or RESULTS)
        return 0
    chosen = _chosen(options.faults, options.system, alone=options.alone)
    if not chosen:
        print(f"no such fault; there are: {', '.join(sorted({fault.name for fault in every_fault()}))}", file=sys.stderr)
        return 2
    # SIGTERM raises SystemExit, so that everything that runs is ended and removed also when somebody stops this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TOLD_TO_STOP))
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="penstock-faults-", dir=options.folder))
    adopt_orphans()
    verdicts, left_out = _run_all(chosen, folder, options)
    sheet.show(verdicts, missing=not options.faults)
    if all(verdict.passed for verdict in verdicts):
        shutil.rmtree(folder)
    else:
        print(f"ledgers, execution logs and the logs of all processes: {folder}", file=sys.stderr)
    # Only the faults of penstock must all run and pass: plain Celery may fall short, and may be left out.
    whole = PENSTOCK not in {fault.system for fault in left_out}
    return 0 if whole and all(verdict.passed for verdict in verdicts if verdict.system == PENSTOCK) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="F2, F18-everysec, ...; all when none is named")
    parser.add_argument("--system", choices=(PENSTOCK, CELERY), help="only this one; else both, where both have the fault")
    parser.add_argument("--alone", action="store_true", help="F2 means F2 alone, and not F2-one and F2-poison as well")
    parser.add_argument("--small", action="store_true", help="small counts instead of the full ones")
    parser.add_argument("--within", type=float, default=math.inf, metavar="MINUTES", help="leave out what would take longer")
    parser.add_argument("--seeds", type=int, default=1, help="how often each fault is injected, with another seed each time")
    parser.add_argument(
        "--json", type=Path, help=f"where the lines go, each as soon as it is known; default {RESULTS.name} of the benchmarks"
    )
    parser.add_argument("--markdown", action="store_true", help="inject nothing; print the saved lines as a table")
    parser.add_argument("--docs", action="store_true", help=f"the same, and put the table into docs/why/{DOCS.name}")
    parser.add_argument("--folder", type=Path, help="where to work: a real disk, or the figures of `always` flatter")
    return parser


def _chosen(names: Sequence[str], system: str | None, *, alone: bool) -> list[Fault]:
    wanted = set(names)

    def is_wanted(fault: Fault) -> bool:
        return not wanted or fault.name in wanted or (not alone and f"F{fault.number}" in wanted)

    return [fault for fault in every_fault() if is_wanted(fault) and system in (None, fault.system)]


def _run_all(chosen: Sequence[Fault], folder: Path, options: argparse.Namespace) -> tuple[list[Verdict], list[Fault]]:
    """Return the verdicts, and the faults left out for lack of time.

    Every verdict is saved as soon as it is known, so that a run that is ended early keeps the verdicts it has.
    """
    verdicts: list[Verdict] = []
    left_out: list[Fault] = []
    until = time.monotonic() + 60.0 * options.within
    took_s = {} if options.small else {**USUAL_S, **sheet.took_s(options.json or RESULTS)}
    for number, fault in enumerate(chosen, start=1):
        own_s = options.seeds * expected_s([fault], took_s)
        if time.monotonic() + own_s > until:
            _tell(f"{fault.name} ({fault.system}): left out, it takes about {own_s:.0f} s; its saved line stays")
            left_out.append(fault)
            continue
        rest_s = min(until - time.monotonic(), options.seeds * expected_s(chosen[number - 1 :], took_s))
        _tell(f"[{number} of {len(chosen)}, about {rest_s / 60:.0f} min left] {fault.name} ({fault.system}): {fault.title} ...")
        for seed in range(options.seeds):
            found = _run(fault, folder, options, seed + 1)
            if found is None:
                continue
            _say(found)
            verdicts.append(found)
            took_s[fault.name, fault.system] = found.took_s
            if options.json:
                sheet.save(_worst_of(verdicts), options.json)
    return verdicts, left_out


def _say(verdict: Verdict) -> None:
    beside = f", others took {verdict.others:.0%} of the machine" if verdict.others > DISTURBED else ""
    _tell(f"    {'passed' if verdict.passed else 'FELL SHORT'} in {verdict.took_s:g} s{beside}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(fault: Fault, folder: Path, options: argparse.Namespace, seed: int) -> Verdict | None:
    """Inject the fault and return its verdict with the time it took; None if this machine cannot inject the fault."""
    meter = Meter()
    found = _inject(fault, folder, options, seed)
    took_s, others = meter.read()
    return found and replace(found, took_s=took_s, others=others)


def _inject(fault: Fault, folder: Path, options: argparse.Namespace, seed: int) -> Verdict | None:
    """Return the verdict, also for a scenario that broke down."""
    place = folder / f"{fault.name}-{fault.system}-{seed}"
    place.mkdir()
    try:
        return fault.run(Setting(place, full=not options.small, seed=seed))
    except NoCompiler as reason:
        print(f"{fault.name}: skipped: {reason}", file=sys.stderr)
        return None
    except (AssertionError, LookupError, OSError, RuntimeError, ValueError, subprocess.SubprocessError) as broken:
        traceback.print_exc()
        return Verdict(
            fault.name, fault.system, 0, 0, 0, 0, 0, None, 0, passed=False, complaints=(f"broke down: {broken!r:.300}",)
        )


def _worst_of(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return one line per fault and system: of several seeds, one that fell short, or else the slowest to recover."""
    lines: dict[tuple[str, str], Verdict] = {}
    for verdict in verdicts:
        before = lines.get((verdict.fault, verdict.system))
        if before is None or (before.passed, -(before.recover_s or 0)) > (verdict.passed, -(verdict.recover_s or 0)):
            lines[verdict.fault, verdict.system] = verdict
    return list(lines.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
