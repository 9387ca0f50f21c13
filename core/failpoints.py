"""Named places where a fault test makes this process die, freeze, wait or fail. They do nothing unless PENSTOCK_FAULT is set.

`PENSTOCK_FAULT=site:action[:nth][,...]` fires once per process, at the nth time the site is reached (default: the first).
Actions: `kill` (SIGKILL, as the kernel's memory killer does), `stop` (SIGSTOP), `raise`, `sleep=SECONDS`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.errors import ConfigError

VARIABLE = "PENSTOCK_FAULT"
_STOPS_WITHIN_S = 0.5
SITES = frozenset(
    {
        "after_claim",
        "before_run",
        "after_blob_before_finish",
        "after_finish_before_reply",
        "in_sweep",
        "in_release",
        "after_submit_before_reply",
        "before_run_commit",
        "before_stage_submit",
        "after_stage_submit",
        "after_stage_end",
        "before_stages_end",
    }
)


class InjectedFault(RuntimeError):
    """Raised by the action `raise`; no code catches it by name."""


@dataclass(frozen=True, slots=True)
class Fault:
    action: str
    argument: float
    nth: int


def parse(text: str) -> dict[str, Fault]:
    """The faults by site. Raises `ConfigError` for a site or action that does not exist, because a typo would test nothing."""
    return dict(_entry(entry) for entry in text.split(",") if entry)


def _entry(entry: str) -> tuple[str, Fault]:
    site, _, rest = entry.partition(":")
    action, _, nth = rest.partition(":")
    name, _, argument = action.partition("=")
    if site not in SITES or name not in _ACTIONS:
        raise ConfigError(f"{VARIABLE}: {entry!r} names no site of {sorted(SITES)}, or no action of {sorted(_ACTIONS)}")
    return site, Fault(name, float(argument or 0), int(nth or 1))


class _Armed:
    """Counts how often each site was reached, over all threads."""

    def __init__(self, faults: Mapping[str, Fault]) -> None:
        self._faults = faults
        self._reached = dict.fromkeys(faults, 0)
        self._lock = threading.Lock()

    def __call__(self, site: str) -> None:
        fault = self._faults.get(site)
        if fault is None:
            return
        with self._lock:
            self._reached[site] += 1
            due = self._reached[site] == fault.nth
        if due:
            _ACTIONS[fault.action](fault.argument)


def _kill(_: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(_: float) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    # The kernel stops the threads one after the other; meanwhile this one must not reach the step after the site.
    time.sleep(_STOPS_WITHIN_S)


def _raise(_: float) -> None:
    raise InjectedFault("a fault test asked for this")


_ACTIONS: Mapping[str, Callable[[float], None]] = {"kill": _kill, "stop": _stop, "raise": _raise, "sleep": time.sleep}


# Outside of fault tests a failpoint is a look-up in an empty set, which runs no Python code.
_UNARMED: Callable[[str], object] = frozenset[str]().__contains__


def armed(environment: Mapping[str, str]) -> Callable[[str], object]:
    text = environment.get(VARIABLE, "")
    return _Armed(parse(text)) if text else _UNARMED


# Read at import, against the rule for settings: a site must cost next to nothing, not a look at the environment.
failpoint: Callable[[str], object] = armed(os.environ)
