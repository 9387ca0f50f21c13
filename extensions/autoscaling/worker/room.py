"""Which models leave a device so that another one can be loaded there: the least recently used, after its least stay. Pure.

D112: docs/design/workers-and-devices.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Key = tuple[str, str]
# The least stay of a loaded model. With jobs for two models and room for one, there are at most two loads per minute. Settings
# can change it.
LEAST_STAY_S = 30.0
# A model stays for this multiple of its own load time, so that at most a tenth of the time goes into loading.
STAY_LOADS = 10.0
MOST_STAY_S = 600.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """The slots of one version on a device. `memory_bytes`: of all of them. `spare`: how many of the `slots` may leave.

    `ready_at`: when the last of them became ready, `used_at`: when they last ran something, both monotonic; infinity: not yet.
    `start_s`: how long a load takes. `is_leaving`: its slots finish what they run, and then their memory is free.
    """

    key: Key
    slots: int
    spare: int
    memory_bytes: int
    ready_at: float
    used_at: float
    start_s: float
    is_leaving: bool = False
    least_stay_s: float = LEAST_STAY_S

    def may_leave(self, deadline_s: float, now: float) -> bool:
        """Whether it has been there for long enough, while another model waits whose jobs have `deadline_s`."""
        return now - self.ready_at >= stay_s(self.start_s, deadline_s=deadline_s, least_s=self.least_stay_s)

    @property
    def each_bytes(self) -> int:
        return self.memory_bytes // max(1, self.slots)


def stay_s(start_s: float, *, deadline_s: float, least_s: float = LEAST_STAY_S) -> float:
    """The least time that a model stays loaded while another one waits, whose jobs have the deadline `deadline_s`.

    It exceeds `least_s` for models that load slowly, but is short enough for the waiting jobs to meet their deadlines.
    """
    wished = min(MOST_STAY_S, max(least_s, STAY_LOADS * start_s))
    return max(least_s, min(wished, deadline_s / 2.0 - start_s))


def gives_way(
    needed_bytes: int, budget_bytes: int, tenants: Iterable[Tenant], *, deadline_s: float, now: float
) -> Mapping[Key, int] | None:
    """How many slots of each version must leave to free `needed_bytes`; empty if there is room already.

    None if no room can be made yet. Slots that are already leaving count as free, so that no more leave than necessary.
    """
    there = list(tenants)
    missing = needed_bytes + sum(one.memory_bytes for one in there) - budget_bytes
    if missing <= 0:
        return {}
    missing -= sum(one.memory_bytes for one in there if one.is_leaving)
    if missing <= 0:
        return None
    leavers: dict[Key, int] = {}
    old = [one for one in there if not one.is_leaving and one.may_leave(deadline_s, now)]
    for one in sorted(old, key=lambda one: (one.used_at, one.ready_at)):
        count = min(one.spare, -(-missing // one.each_bytes)) if missing > 0 and one.each_bytes else 0
        leavers.update({one.key: count} if count else {})
        missing -= count * one.each_bytes
    if missing > 0 or not leavers:
        return None
    return _without_needless(leavers, {one.key: one.each_bytes for one in old}, spared=-missing)


def _without_needless(leavers: Mapping[Key, int], each_bytes: Mapping[Key, int], *, spared: int) -> dict[Key, int]:
    """The leavers less the slots that can stay because a larger model leaves: `spared` bytes are freed beyond the need."""
    kept: dict[Key, int] = {}
    for key, count in sorted(leavers.items(), key=lambda leaver: each_bytes[leaver[0]]):
        stays = min(count, spared // each_bytes[key])
        spared -= stays * each_bytes[key]
        kept.update({key: count - stays} if count > stays else {})
    return kept
