"""Who may read the wall clock, and why (`make clocks`). The clocks of two hosts differ, by seconds or by hours.

A moment that another process compares is read from the store's clock: `RedisStore.now`, `AsyncStore.now`, `now_ms` in the
functions; ages of files and objects from the clock of their place. A time that one process measures is monotonic.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator

from tests.house import ROOT, TOPS

READS = {
    "time": frozenset({"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime"}),
    "datetime": frozenset({"now", "utcnow", "today"}),
    "date": frozenset({"today"}),
}
# Each module that reads the wall clock, and why no other host's clock is compared with it.
ALLOWED = {
    "benchmarks/experiments/metrics_scrape.py": "measures on one machine",
    "cli/display.py": "`3 s ago`, as the reader's own clock counts; nothing is decided by it",
    "cli/ops/keys.py": "writes the date on which a new key ends, for an operator to read",
    "client/problems.py": "a date in Retry-After is one of the wall clock (RFC 9110), and the wait is bounded",
    "core/job.py": "serials begin with the time so that they sort roughly by it; nothing compares them with a clock",
    "core/settings/keys.py": "a key ends on the date that an operator wrote, even while the store is away",
    "gateway/auth/keys.py": "a key ends on the date that an operator wrote, even before the store has told its time",
    "extensions/torchserve/gateway/access_log.py": "log lines in the form of TorchServe carry the clock of their process",
    "extensions/torchserve/child/surface/metrics.py": "log lines in the form of TorchServe carry the clock of their process",
    "loadtest/observed/machine.py": "the date of a report",
    "runs/run_files.py": "the journal tells people when a commit was; nothing reads it",
    "workers/bootstep/consumer.py": "Celery's own messages carry the clock of their sender",
    "workers/fleet/profiling.py": "names a folder on this host",
    "workers/telemetry/metrics.py": "a timestamp for Prometheus, whose rules read it beside its own clock",
    "workers/telemetry/task_events.py": "Celery's events carry the clock of their sender",
    "extensions/tracing/worker.py": "spans carry the clock of their process (OTLP)",
}
# Whatever `reads_in` finds has this in its text; most files have not, and need no parsing.
_MAY_READ = re.compile(rf"\b({'|'.join(READS)})\s*\.\s*({'|'.join(set().union(*READS.values()))})\b|from time import")


def reads_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every reference to a function that reads the wall clock."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in READS.get(_name_of(node.value), ()):
            yield node.lineno, f"{_name_of(node.value)}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from ((node.lineno, f"time.{name.name}") for name in node.names if name.name in READS["time"])


def _name_of(node: ast.expr) -> str:
    """`datetime` for both `datetime` and `datetime.datetime`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def sources() -> Iterator[tuple[str, ast.AST]]:
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            text = path.read_text("utf-8")
            if _MAY_READ.search(text):
                yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def faults(found: Iterable[tuple[str, ast.AST]]) -> list[str]:
    """Return a sentence per module that reads the wall clock without a reason, or has a reason and does not."""
    wrong, reading = [], set()
    for path, tree in found:
        for line, name in reads_in(tree):
            reading.add(path)
            if path not in ALLOWED:
                wrong.append(
                    f"{path}:{line}: {name} reads the wall clock: take the store's clock, or give the reason in tests/clocks.py"
                )
    return [
        *wrong,
        *(f"{path}: tests/clocks.py allows the wall clock, and nothing reads it" for path in sorted(ALLOWED.keys() - reading)),
    ]


def main() -> int:
    wrong = faults(sources())
    print(f"{len(ALLOWED)} modules may read the wall clock; {len(wrong)} faults", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
