"""`python -m benchmarks.torchserve record|workflows|compare|figures`: TorchServe's answers, ours, and what each costs."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from benchmarks.torchserve import load, losses, servers, workflows
from benchmarks.torchserve.archives import ARCHIVES, Archive
from benchmarks.torchserve.differences import differences, stale, table, unmeant
from benchmarks.torchserve.exchanges import Exchange, KeptAnswer, send
from benchmarks.torchserve.pages import figures_table, write_between
from benchmarks.torchserve.requests import exchanges
from penstock.loadtest.observed.machine import describe_machine

_RESULTS = Path(__file__).resolve().parents[1] / "results"
ANSWERS, FIGURES = _RESULTS / "torchserve_answers.json", _RESULTS / "torchserve.json"
DOCS = _RESULTS.parents[1] / "docs" / "reference" / "torchserve.md"
Start = Callable[[servers.Site], AbstractContextManager[servers.ModelServer]]


def answers_of(start: Start, folder: Path, archives: Iterable[Archive]) -> dict[str, KeptAnswer]:
    """What a server answers to each exchange about these archives, by the exchange's key."""
    plain = [archive for archive in archives if not archive.settings]
    found = _answers(start, folder / "plain", plain, [exchange for exchange in exchanges() if exchange.about != "envelope"])
    for archive in archives:
        if archive.settings:
            own = [exchange for exchange in exchanges() if exchange.about == archive.name]
            found |= _answers(start, folder / archive.name, [archive], own, archive.settings)
    return found


def _answers(
    start: Start, folder: Path, archives: list[Archive], asked: list[Exchange], lines: Iterable[str] = ()
) -> dict[str, KeptAnswer]:
    folder.mkdir(parents=True)
    site = servers.make_site(folder, archives, list(lines))
    known = {archive.name for archive in archives}
    with start(site):
        return {
            exchange.key: send(exchange, site.ports[exchange.port])
            for exchange in asked
            if not exchange.about or exchange.about in known
        }


def record() -> int:
    """Ask TorchServe, and keep what it answers."""
    servers.set_up()
    with tempfile.TemporaryDirectory(prefix="penstock-torchserve-") as folder:
        found = answers_of(servers.torchserve, Path(folder), ARCHIVES)
    ANSWERS.write_text(json.dumps({key: asdict(answer) for key, answer in found.items()}, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(found)} answers of TorchServe in {ANSWERS}")
    return 0


def recorded() -> dict[str, KeptAnswer]:
    """What TorchServe answered when it was last asked."""
    return {key: KeptAnswer(**fields) for key, fields in json.loads(ANSWERS.read_text()).items()}


def compare() -> int:
    """Ask penstock the same, print what differs from TorchServe's answers, write the table of docs/reference/torchserve.md."""
    with tempfile.TemporaryDirectory(prefix="penstock-torchserve-") as folder:
        ours = answers_of(servers.penstock, Path(folder), ARCHIVES)
    found = differences(recorded(), ours)
    for one in unmeant(found):
        print(f"{one.key}: {one.part}\n  TorchServe: {_short(one.theirs)}\n  penstock:   {_short(one.ours)}")
    for what in stale(found):
        print(f"does not differ any more: {what}")
    print(f"{len(ours)} answers, {len(found)} differences, {len(unmeant(found))} of them not meant")
    write_between(DOCS, "differences: make compare-torchserve", table(found))
    return int(bool(unmeant(found) or stale(found)))


def figures() -> int:
    """Load both servers in turns, kill parts of both, and keep the figures."""
    servers.set_up()
    # On a disk: penstock syncs what it accepts, which costs nothing in a memory file system.
    with tempfile.TemporaryDirectory(prefix="penstock-torchserve-", dir=ANSWERS.parents[2] / "build") as folder:
        under_load = load.measure(Path(folder) / "load", rounds=3, seconds=5.0, say=print)
        kept = losses.measure(Path(folder) / "losses")
    found = {"machine": describe_machine(), "load": under_load, "losses": kept}
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    write_between(DOCS, "figures: make compare-torchserve", figures_table(found))
    print(figures_table(found))
    return 0


def record_workflows() -> int:
    """Ask an older TorchServe, which still has workflows, and keep what it answers."""
    with tempfile.TemporaryDirectory(prefix="penstock-torchserve-") as folder:
        workflows.record(Path(folder))
    return 0


def both() -> int:
    return compare() or figures()


def _short(text: str) -> str:
    return " ".join(text.split())[:300]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torchserve", description=__doc__)
    verbs: dict[str, Callable[[], int]] = {"record": record, "compare": compare, "figures": figures, "all": both}
    verbs["workflows"] = record_workflows
    parser.add_argument("verb", choices=verbs)
    sys.exit(verbs[parser.parse_args().verb]())


if __name__ == "__main__":
    main()
