"""Which models leave a device so that another one can be loaded there: the least recently used, and none too soon. Pure.

D112: docs/design/workers-and-devices.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Key = tuple[str, str]
# With room for one of two models, and jobs for both, each load stands for longer than this: at most two loads per minute. The
# settings may say another time.
LEAST_STAY_S = 30.0
# A model stays for this multiple of its own load, so that at most a tenth of the time goes into loading.
STAY_LOADS = 10.0
MOST_STAY_S = 600.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """The slots of one version on a device. `memory_bytes` of all of them; `spare`: how many may go, of `slots`.

    `ready_at`: when the last of them became ready, `used_at`: when they last ran something, both monotonic; infinity: not yet.
    `start_s`: how long a load takes. `is_leaving`: its slots end what they run, and then their memory is free.
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
    """How long a model stays loaded at least while another one waits whose jobs have `deadline_s`.

    Longer than `least_s` for models that take long to load, but jobs that wait must not miss their deadlines for that.
    """
    wished = min(MOST_STAY_S, max(least_s, STAY_LOADS * start_s))
    return max(least_s, min(wished, deadline_s / 2.0 - start_s))


def gives_way(
    needed_bytes: int, budget_bytes: int, tenants: Iterable[Tenant], *, deadline_s: float, now: float
) -> Mapping[Key, int] | None:
    """How many slots of which versions are to leave, so that `needed_bytes` find room; empty: there is room already.

    None: there is none yet. Slots that are leaving already count as room that comes, so that not more leave than need to.
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
    """Less the slots that need not leave because a larger model leaves too: `spared` bytes more than needed become free."""
    kept: dict[Key, int] = {}
    for key, count in sorted(leavers.items(), key=lambda leaver: each_bytes[leaver[0]]):
        stays = min(count, spared // each_bytes[key])
        spared -= stays * each_bytes[key]
        kept.update({key: count - stays} if count > stays else {})
    return kept
