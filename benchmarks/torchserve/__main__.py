"""`python -m benchmarks.torchserve record|compare|figures`: TorchServe's answers, ours beside them, and what each costs."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.torchserve import servers
from benchmarks.torchserve.archives import ARCHIVES, Archive
from benchmarks.torchserve.differences import differences, stale, unmeant
from benchmarks.torchserve.exchanges import Exchange, KeptAnswer, send
from benchmarks.torchserve.requests import exchanges

ANSWERS = Path(__file__).resolve().parents[1] / "results" / "torchserve_answers.json"
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


def record() -> None:
    """Ask TorchServe, and keep what it answers."""
    servers.set_up()
    with tempfile.TemporaryDirectory(prefix="penstock-torchserve-") as folder:
        found = answers_of(servers.torchserve, Path(folder), ARCHIVES)
    ANSWERS.write_text(json.dumps({key: asdict(answer) for key, answer in found.items()}, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(found)} answers of TorchServe in {ANSWERS}")


def recorded() -> dict[str, KeptAnswer]:
    """What TorchServe answered when it was last asked."""
    return {key: KeptAnswer(**fields) for key, fields in json.loads(ANSWERS.read_text()).items()}


def compare() -> None:
    """Ask penstock the same, and print what differs from TorchServe's answers."""
    with tempfile.TemporaryDirectory(prefix="penstock-torchserve-") as folder:
        ours = answers_of(servers.penstock, Path(folder), ARCHIVES)
    found = differences(recorded(), ours)
    for one in unmeant(found):
        print(f"{one.key}: {one.part}\n  TorchServe: {_short(one.theirs)}\n  penstock:   {_short(one.ours)}")
    for key, part in stale(found, set(ours)):
        print(f"{key}: {part} does not differ any more")
    print(f"{len(ours)} answers, {len(found)} differences, {len(unmeant(found))} of them not meant")


def _short(text: str) -> str:
    return " ".join(text.split())[:300]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torchserve", description=__doc__)
    verbs: dict[str, Callable[[], Any]] = {"record": record, "compare": compare}
    parser.add_argument("verb", choices=verbs)
    verbs[parser.parse_args().verb]()


if __name__ == "__main__":
    main()
