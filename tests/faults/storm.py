"""The kill storm: whole worker groups are killed at random while a queue drains, the same way for every system."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from tests.faults.executions import Executions
from tests.faults.processes import Group

# A kill follows the first item that a fresh worker begins: plain Celery was first measured under this pattern of kills.
KILL_AFTER_S = (0.1, 0.6)
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Kill:
    """`hit` holds the jobs that ran in the group that was killed at `at` (Unix seconds)."""

    at: float
    hit: frozenset[str]


class Storm:
    """A storm must run on the main thread: the groups that it starts end with the thread that started them."""

    def __init__(self, groups: Sequence[Group], executions: Executions, random: Random) -> None:
        self._groups = groups
        self._executions = executions
        self._random = random
        self._due: dict[int, float] = {}
        self.kills: list[Kill] = []

    def run(self, kills: int, *, waiting: Callable[[], int], within_s: float) -> None:
        """Kill and restart until `kills` kills are done, nothing waits any more, or `within_s` is over."""
        give_up_at = time.monotonic() + within_s
        while len(self.kills) < kills and time.monotonic() < give_up_at and (waiting() or not self.kills):
            self._mark()
            for group in self._groups:
                if self._due.get(group.pid, float("inf")) <= time.monotonic():
                    self._strike(group)
            time.sleep(_LOOK_S)

    def _mark(self) -> None:
        """Plan a kill of every group that has begun to work since its start."""
        pids = {group.pid for group in self._groups}
        for line in self._executions.news():
            if line.event == "begin" and line.supervisor in pids and line.supervisor not in self._due:
                self._due[line.supervisor] = time.monotonic() + self._random.uniform(*KILL_AFTER_S)

    def _strike(self, group: Group) -> None:
        at, own = time.time(), group.pid
        running = self._executions.running(at)
        hit = {line.nonce for line in self._executions.all if line.supervisor == own and line.nonce in running}
        del self._due[own]
        group.kill()
        self.kills.append(Kill(at, frozenset(hit)))
        group.start()

    def recoveries(self) -> list[float]:
        """Return the seconds, per kill that hit something, until the first job it hit began again on any worker; sorted.

        The job's end does not count: with the next kill a moment away, it would show how long a job needs between two kills.
        """
        begins: dict[str, list[float]] = defaultdict(list)
        for line in self._executions.of("begin"):
            begins[line.nonce].append(line.at)
        again = [[at for nonce in kill.hit for at in begins[nonce] if at > kill.at] for kill in self.kills]
        return sorted(min(later) - kill.at for kill, later in zip(self.kills, again, strict=True) if later)


def in_words(kills: int, recoveries: Sequence[float]) -> str:
    if not recoveries:
        return f"{kills} kills"
    late = recoveries[int(0.95 * (len(recoveries) - 1))]
    return f"{kills} kills; begun again after {median(recoveries):.1f} s (median), {late:.1f} s (95 %), {recoveries[-1]:.1f} s"
