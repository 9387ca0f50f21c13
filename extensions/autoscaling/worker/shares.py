"""Divides the slots that a version needs among the worker processes that may have them. Pure.

Every process computes the same shares from what all of them announce, so that they respond to a backlog once, without a leader.
D112: docs/design/workers-and-devices.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostSlots:
    """The slots that one worker process should have now, and its bounds."""

    now: int
    least: int
    most: int


def shares(needed: int, hosts: Mapping[str, HostSlots]) -> dict[str, int]:
    """How many slots each process should have, `needed` together if their bounds allow it.

    Each process first gets its least. Existing slots then stay, and only missing ones are started, each on the process with the
    smallest share of its maximum.
    """
    given = {name: min(host.least, host.most) for name, host in hosts.items()}
    missing = needed - sum(given.values())
    missing = _give(given, missing, {name: min(host.now, host.most) for name, host in hosts.items()}, hosts)
    _give(given, missing, {name: host.most for name, host in hosts.items()}, hosts)
    return given


def _give(given: dict[str, int], missing: int, most: Mapping[str, int], hosts: Mapping[str, HostSlots]) -> int:
    """Give slots one by one, up to `most`. Returns how many are still missing."""
    while missing > 0:
        open_hosts = [name for name in hosts if given[name] < most[name]]
        if not open_hosts:
            break
        name = min(open_hosts, key=lambda name: (given[name] / max(1, hosts[name].most), name))
        given[name] += 1
        missing -= 1
    return missing
