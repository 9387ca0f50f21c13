"""What a slot does with jobs that wait while its lease has lapsed: a process may be stopped twice within moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.broker.blobs.files import LocalBlobs
from penstock.model_spec import ModelSpec
from penstock.workers.devices.pins import Pin
from penstock.workers.slot.batcher import IDLE_POLL_S
from penstock.workers.slot.context import Observers, SlotContext
from penstock.workers.slot.needless import NeedlessBlobs
from penstock.workers.slot.slot import Slot
from tests.unit.workers.slot.test_outcomes import batch, job
from tests.unit.workers.slot.test_settlement import ShakyStore


def idle_slot(store: Any, folder: Path) -> Slot:
    """A slot whose loop does not run, so nothing listens."""

    def listen(queue: str, incarnation: str) -> Any:
        raise AssertionError((queue, incarnation))

    blobs = LocalBlobs(folder)
    needless = NeedlessBlobs(blobs, store, replicas=None)
    context = SlotContext(lambda: store, listen, blobs, needless, Observers(), lease_s=3.0, inline_output_bytes=1)
    return Slot(ModelSpec("m", "m.py"), Pin((), 1), context, name="w")


def test_what_is_handed_over_in_the_turn_after_a_lapse_is_given_back_too(tmp_path: Path) -> None:
    """Regression: a worker that was stopped again at once began the second batch, and another worker ran it as well."""
    store = ShakyStore()
    slot = idle_slot(store, tmp_path)
    slot._claims.feeds.all[0].lease.confirm(100.0)
    for turn, now in enumerate((104.0, 104.1), start=1):
        slot._claims.waiting.append(batch(job(turn)))
        slot._check_lease(now)
        assert slot._claims.waiting == []
        slot._debts.settlements.settle_and_claim(None)
    assert [(name, [item.id.serial for item in items]) for name, items in store.calls] == [
        ("release", [f"{turn:026d}"]) for turn in (1, 2)
    ]


def test_a_slot_that_cannot_settle_what_it_owes_at_its_drains_end_does_not_spin(tmp_path: Path) -> None:
    """Regression: between the end of the drain and the moment when it gave up, a slot with a broken link used a whole core."""
    slot = idle_slot(ShakyStore(), tmp_path)
    slot._drain_by = 100.0
    assert slot._pause_s(100.1) == 0.0, "its batches are still to be given back"
    slot._wind_down(100.1, 100.0)
    assert [slot._pause_s(now) for now in (100.1, 104.5, 105.5)] == [IDLE_POLL_S] * 3
