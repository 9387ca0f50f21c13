"""How long a fault took, and how much of the machine other programs used meanwhile, which makes a measured time unreliable."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Mapping, Sequence

from penstock.loadtest.observed.costs import MachineReading, read_machine
from tests.faults.catalogue import Fault

# A line of the score sheet says so if other programs took more than this share of the machine.
DISTURBED = 0.1
# The slow faults took these times on two cores, and most others less than `_USUAL_S`; saved lines are better, once they exist.
USUAL_S = {("F2", "penstock"): 330.0, ("F2", "celery"): 430.0, ("F17", "celery"): 140.0, ("F25", "celery"): 180.0}
USUAL_S |= {("F42", "penstock"): 150.0, ("F42-gateway", "penstock"): 190.0, ("F42-worker", "penstock"): 250.0}
USUAL_S |= {("F42-store", "penstock"): 45.0, ("F42-freeze", "penstock"): 130.0}
USUAL_S |= {("F32", "penstock"): 120.0, ("F21-files", "penstock"): 45.0, ("F21-objects", "penstock"): 50.0}
_USUAL_S = 20.0
_SET_CHILD_SUBREAPER = 36  # from <linux/prctl.h>


def adopt_orphans() -> None:
    """From now on, adopt the children that killed processes leave behind, so that the CPU time of those children counts too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Take the exit status of every child that has ended; only safe between faults, which wait for their own children."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


class Meter:
    """Measures from its creation on. All processes of the fault must have ended before the meter is read."""

    def __init__(self) -> None:
        self._machine, self._own_s, self._since = read_machine(), _own_s(), time.monotonic()

    def read(self) -> tuple[float, float]:
        """Return the seconds since creation, and the share of the machine that other programs took, from 0 to 1."""
        reap_orphans()
        now: MachineReading = read_machine()
        share = now.foreign_share(self._machine, _own_s() - self._own_s)
        return round(time.monotonic() - self._since, 1), round(share, 2)


def _own_s() -> float:
    """Return the CPU seconds of this process and of all its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def expected_s(faults: Sequence[Fault], took_s: Mapping[tuple[str, str], float]) -> float:
    """Return how long these faults will take in all, if each takes what it took the last time."""
    return sum(took_s.get((fault.name, fault.system), _USUAL_S) for fault in faults)
