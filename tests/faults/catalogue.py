"""The list of faults: a fault is a function from a setting to a verdict, or a sentence that says why no function exists yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.faults.checker import Verdict

PENSTOCK = "penstock"
CELERY = "celery"


@dataclass(frozen=True, slots=True)
class Setting:
    """`full` asks for the counts of the score sheet instead of small ones. `seed` decides everything that is random."""

    folder: Path
    full: bool = False
    seed: int = 1

    def count(self, small: int, full: int) -> int:
        return full if self.full else small

    @property
    def random(self) -> Random:
        return Random(self.seed)


@dataclass(frozen=True, slots=True)
class Fault:
    """`number` is the fault's number in docs/why/guarantees.md; several scenarios may show one fault from several sides."""

    name: str
    system: str
    title: str
    run: Callable[[Setting], Verdict]

    @property
    def number(self) -> int:
        return int(self.name.partition("-")[0][1:])


FAULTS: dict[tuple[str, str], Fault] = {}

ABSENT = {
    "F11": "A real sticky fault needs a device; tests/integration/test_worker_faults.py raises its errors in a real child.",
    "F28": "Measured by `python -m benchmarks.main_path --only deep_queue`: a million jobs take too long beside other faults.",
    "F30": "Counting store operations under 500 reconnecting clients needs more than the two cores this runs on.",
    "F38": "There is one version of penstock so far, so nothing to roll between; functions are already named by their hash.",
}


def fault(
    name: str, title: str, *, system: str = PENSTOCK
) -> Callable[[Callable[[Setting], Verdict]], Callable[[Setting], Verdict]]:
    """Put a scenario into the catalogue."""

    def add(run: Callable[[Setting], Verdict]) -> Callable[[Setting], Verdict]:
        FAULTS[name, system] = Fault(name, system, title, run)
        return run

    return add
