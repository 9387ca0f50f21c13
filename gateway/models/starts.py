"""Estimates the time until a version has a ready slot, from starts that this gateway saw. Pure; time is passed in.

The time runs from the first job without a ready slot to the first ready slot: the scaler must notice, a machine or a pod
must start, and the model must load.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from penstock.broker.backlog import SlotCapacity

# Longer times have another cause, such as a fault that a person had to fix.
LONGEST_START_S = 3600.0
# The least remaining time of a start, as a share of the last start's time.
_OVERDUE_SHARE = 0.25

Version = tuple[str, str]


@dataclass(slots=True)
class _SeenStart:
    """`one`: the capacity of one slot when slots were last ready. `since`: when jobs began to wait without a slot."""

    one: SlotCapacity = field(default_factory=SlotCapacity)
    took_s: float = 0.0
    since: float | None = None


class SlotStarts:
    """The last start of each version."""

    def __init__(self) -> None:
        self._seen: dict[Version, _SeenStart] = {}

    def known(self, version: Version, now_has: SlotCapacity, now: float, *, is_wanted: bool) -> SlotCapacity:
        """The version's capacity; without a ready slot, the capacity of one slot and the seconds until its start, if known.

        `is_wanted`: jobs wait for the model, or a caller was just refused because no slot is ready.
        """
        seen = self._seen.setdefault(version, _SeenStart())
        if now_has.ready_slots:
            self._note_ready(seen, now_has, now)
            return now_has
        if not is_wanted:
            seen.since = None
        elif seen.since is None:
            seen.since = now
        return replace(seen.one, ready_slots=0, start_s=_left_s(seen, now))

    def forget_all_but(self, versions: Set[Version]) -> None:
        for version in self._seen.keys() - versions:
            del self._seen[version]

    @staticmethod
    def _note_ready(seen: _SeenStart, capacity: SlotCapacity, now: float) -> None:
        if seen.since is not None and now - seen.since <= LONGEST_START_S:
            took_s = now - seen.since
            seen.took_s = (seen.took_s + took_s) / 2 if seen.took_s else took_s
        seen.since = None
        if capacity.full_per_s:
            slots = capacity.ready_slots
            seen.one = replace(capacity, per_s=capacity.per_s / slots, full_per_s=capacity.full_per_s / slots)


def _left_s(seen: _SeenStart, now: float) -> float:
    if not seen.took_s or seen.since is None:
        return seen.took_s
    return max(seen.took_s - (now - seen.since), _OVERDUE_SHARE * seen.took_s)
