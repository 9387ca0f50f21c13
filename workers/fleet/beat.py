"""The beat: renews the leases of this worker's slots, so that the store knows that their jobs are worked on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.workers.slot.feeds import Lease
from penstock.workers.slot.slot import Slot

log = structlog.get_logger(__name__)
BEAT_MISSED = "beat_missed"
SLOT_STUCK = "slot_stuck"
SLOT_NOT_RENEWED = "slot_not_renewed"

# A slot ends its child at max_run_s. The store takes the job back this much later, in case the slot failed to.
_OVERRUN_GRACE_S = 10.0


class Beat:
    """One call renews the lease of every slot that holds jobs and whose loop still turns, and then calls `on_beat`."""

    def __init__(
        self,
        store: RedisStore,
        slots: Callable[[], Sequence[Slot]],
        *,
        lease_s: float,
        on_beat: Callable[[RedisStore], None],
    ) -> None:
        self._store = store
        self._slots = slots
        self._lease_s = lease_s
        self._on_beat = on_beat

    def run_once(self, now: float) -> None:
        """Raises `StoreUnavailable`; an error in one slot's renewal stays that slot's. `now` is monotonic."""
        for slot in self._slots():
            try:
                if leases := slot.leases():
                    self._renew(slot, leases, now)
            except StoreUnavailable:
                raise
            except Exception:
                log.exception(SLOT_NOT_RENEWED, model=slot.spec.name)
        self._on_beat(self._store)

    def _renew(self, slot: Slot, leases: Sequence[tuple[str, Lease]], now: float) -> None:
        if now - slot.turned_at > self._lease_s * 2 / 3:
            # A slot whose loop does not turn cannot settle its jobs, so another worker should run them.
            log.error(SLOT_STUCK, model=slot.spec.name, still_s=round(now - slot.turned_at, 1))
            return
        # Twice max_run_s, because a batch may wait in the child for as long as the one before it runs.
        max_run_s = 2 * slot.spec.limits.max_run_s + _OVERRUN_GRACE_S
        moved = slot.progress.moved()
        for queue, lease in leases:
            # D4: the lease is the slot's, under a name that only this incarnation of the slot has.
            name, sent_at = lease.name, time.monotonic()
            own = [job for job in moved if job.queue == queue]
            renewal = self._store.extend(queue, name, lease_s=self._lease_s, max_run_s=max_run_s, progressed=own)
            if renewal.lost:
                slot.fence(name)
            else:
                lease.confirm(sent_at)
                slot.give_up(renewal.cancelled)
