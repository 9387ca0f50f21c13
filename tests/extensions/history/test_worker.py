"""What a worker counts for the history, and how it is written into stores that may be away."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, cast

from penstock.broker.store.ops import Operation
from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.extensions.history.store import BOUNDS_S, BUSY, DEVICE_BUSY, DEVICE_TIME, ITEMS, REASONS, SLOT_TIME, HistoryCounts
from penstock.extensions.history.worker import HistoryKeeper, count_batches, slots_now
from penstock.model_spec import SlotDeviceUse, SlotInfo


class Recorder:
    """A store that notes the calls, and may be away."""

    def __init__(self) -> None:
        self.calls: list[Operation[Any]] = []
        self.is_away = False

    def run_all(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        self.calls += operations
        if self.is_away:
            raise StoreUnavailable("away")
        return [True for _ in operations]

    @property
    def store(self) -> RedisStore:
        return cast("RedisStore", self)


def bucket_of(seconds: float) -> int:
    return bisect_left(BOUNDS_S, seconds)


def keeper() -> HistoryKeeper:
    return HistoryKeeper(4.0, lambda model: [model])


READY = SlotInfo("m", "1", "ready", memory_bytes=100)


def test_batches_become_sums_and_histograms() -> None:
    counts = HistoryCounts()
    count_batches(counts, [("idle", 0.5, [0.1, 0.2]), ("full", 1.0, [0.0]), ("bulk", 9.0, [1.0]), ("unheard-of", 1.0, [0.0])])
    assert counts.sums == {REASONS["idle"]: 1, REASONS["full"]: 1, REASONS["bulk"]: 1, ITEMS: 3}
    assert counts.waits == {bucket_of(0.1): 1, bucket_of(0.2): 1, 0: 2, bucket_of(1.0): 1}
    assert sum(counts.totals.values()) == 5


def test_what_slots_noted_is_written_once() -> None:
    recorder, ours = Recorder(), keeper()
    ours.tally.settled.append(("m", "idle", 0.5, [0.1]))
    ours.tally.busy.append(("m", 0.25))
    ours.look([READY])
    ours.write(recorder.store)
    ours.look([READY])
    ours.write(recorder.store)
    first, second = recorder.calls
    assert (first.args[1], first.args[3]) == (1, 1)
    assert second.args[1] == 2
    assert not ours.tally.settled
    assert not ours.tally.busy


def test_a_write_without_an_answer_is_repeated_as_it_was() -> None:
    recorder, ours = Recorder(), keeper()
    ours.look([READY])
    recorder.is_away = True
    ours.write(recorder.store)
    ours.tally.busy.append(("m", 1.0))
    ours.look([READY])
    ours.write(recorder.store)
    recorder.is_away = False
    ours.write(recorder.store)
    ours.write(recorder.store)
    assert [call.args[1] for call in recorder.calls] == [1, 1, 1, 2]
    assert recorder.calls[0].args == recorder.calls[2].args
    assert recorder.calls[3].args[5] != recorder.calls[0].args[5]


def test_slots_that_are_gone_are_said_to_be_gone_once() -> None:
    recorder = Recorder()
    ours = keeper()
    for infos in ([READY], [], []):
        ours.look(infos)
        ours.write(recorder.store)
    assert [call.args[3] for call in recorder.calls] == [1, 0]


def test_memory_of_a_device_counts_once_and_that_of_processes_adds_up() -> None:
    use = SlotDeviceUse(5000)
    on_device = SlotInfo("g", "1", "ready", device="cuda:0", device_uuid="GPU-1", device_use=use, memory_bytes=7)
    found = slots_now([READY, READY, on_device, on_device, SlotInfo("m", "1", "loading")])
    assert (found["m"].slots, found["m"].memory_bytes) == (2, 200)
    assert (found["g"].slots, found["g"].memory_bytes) == (2, 5000)


def test_a_gpu_is_busy_once_however_many_slots_it_has_and_only_where_its_driver_says_so() -> None:
    def on(device: str, share: float | None) -> SlotInfo:
        return SlotInfo("g", "1", "ready", device="cuda:0", device_uuid=device, device_use=SlotDeviceUse(1, share))

    found = slots_now([on("GPU-1", 0.5), on("GPU-1", 0.5), on("GPU-2", 1.0), on("MIG-3", None), READY])
    assert found["g"].in_time(2.0) == {SLOT_TIME: 8000, DEVICE_BUSY: 3000, DEVICE_TIME: 4000}
    assert found["m"].in_time(2.0) == {SLOT_TIME: 2000, DEVICE_BUSY: 0, DEVICE_TIME: 0}


def test_the_busy_time_counts_in_its_queue() -> None:
    recorder, ours = Recorder(), keeper()
    ours.tally.busy.extend([("m", 0.25), ("m", 0.5)])
    ours.look([])
    ours.write(recorder.store)
    [call] = recorder.calls
    assert call.args[5] == HistoryCounts({BUSY: 750}).packed()
