"""What this worker counts for the history of its models, and writes into the store with its beats."""

# D118: docs/design/store.md

from __future__ import annotations

import secrets
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.extensions.history.settings import HistorySettings
from penstock.extensions.history.store import (
    BOUNDS_S,
    BUSY,
    DEVICE_BUSY,
    DEVICE_TIME,
    ITEMS,
    REASONS,
    SLOT_TIME,
    HistoryCounts,
    HistoryWrite,
    note_history,
)
from penstock.model_spec import SlotInfo
from penstock.workers.fleet.parts import WorkerHost, WorkerPart
from penstock.workers.slot.batch import BULK
from penstock.workers.slot.context import BatchTally

log = structlog.get_logger(__name__)
HISTORY_BLIND = "history_blind"
HISTORY_UNWRITTEN = "history_unwritten"
# A worker that was silent for this many beats has no slots any more.
_BEATS = 3


@dataclass(frozen=True, slots=True)
class SlotsNow:
    """What a worker has for one model. A GPU counts once, however many slots use it. `device_shares`: how busy each GPU is,
    from 0 to 1, where that is known.
    """

    slots: int = 0
    memory_bytes: int = 0
    device_shares: tuple[float, ...] = ()

    def in_time(self, seconds: float) -> dict[int, int]:
        """The sums of a step in which this state lasted for `seconds`."""
        parts = {SLOT_TIME: self.slots, DEVICE_BUSY: sum(self.device_shares), DEVICE_TIME: len(self.device_shares)}
        return {number: round(1000 * seconds * part) for number, part in parts.items()}


def slots_now(infos: Iterable[SlotInfo]) -> dict[str, SlotsNow]:
    """The ready slots of each model, the memory that they use, and how busy their GPUs are."""
    slots: dict[str, int] = defaultdict(int)
    memory: dict[str, dict[str, int]] = defaultdict(dict)
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for number, info in enumerate(one for one in infos if one.state == "ready"):
        slots[info.model] += 1
        use = info.device_use
        memory[info.model][str(number) if use is None else info.device_uuid] = (
            info.memory_bytes if use is None else use.used_bytes
        )
        if use is not None and use.share is not None:
            shares[info.model][info.device_uuid] = use.share
    return {
        model: SlotsNow(count, sum(memory[model].values()), tuple(shares[model].values())) for model, count in slots.items()
    }


def worker_part(host: WorkerHost) -> WorkerPart:
    if not host.settings.extension(HistorySettings).enabled:
        return WorkerPart()
    keeper = HistoryKeeper(host.settings.worker.beat_s, host.queues_of)
    return WorkerPart(tally=keeper.tally, on_beat=keeper.beat)


class HistoryKeeper:
    """Any beat's thread may call `write`. Slots count in the last of a model's queues."""

    def __init__(self, beat_s: float, queues_of: Callable[[str], Sequence[str]]) -> None:
        self.tally = BatchTally()
        # A worker that restarts under its name begins again with number 0, so its writes need another id.
        self._writer = secrets.token_hex(4)
        self._for_s = _BEATS * beat_s + 1.0
        self._queues_of = queues_of
        self._guard = threading.Lock()
        self._counts: dict[str, HistoryCounts] = {}
        self._now: dict[str, SlotsNow] = {}
        self._looked_at = time.monotonic()
        # Writes whose reply has not come: they are repeated under their number, so that nothing counts twice.
        self._under_way: dict[str, HistoryWrite] = {}
        self._number = 0

    def beat(self, store: RedisStore, infos: Iterable[SlotInfo]) -> None:
        self.look(infos)
        self.write(store)

    def look(self, infos: Iterable[SlotInfo]) -> None:
        """Take over the slots' counts and their current state."""
        with self._guard:
            now, before = time.monotonic(), self._looked_at
            slots = {self._queues_of(model)[-1]: one for model, one in slots_now(infos).items()}
            # A queue whose slots are gone must report that once.
            self._now = {**dict.fromkeys(self._now.keys() - slots.keys(), SlotsNow()), **slots}
            self._looked_at = now
            for queue, one in self._now.items():
                _add(self._of(queue).sums, one.in_time(now - before))
            take(self.tally, self._of)

    def write(self, store: RedisStore) -> None:
        """Counts that the store does not accept are kept for the next write."""
        try:
            writes = self._due()
            if writes:
                store.run_all([note_history(queue, write) for queue, write in writes.items()])
            with self._guard:
                for queue in writes:
                    self._under_way.pop(queue, None)
                    if not self._now.get(queue, SlotsNow()).slots:
                        self._now.pop(queue, None)
        except StoreUnavailable as error:
            log.debug(HISTORY_BLIND, reason=error.message)
        except Exception:
            # A beat keeps leases alive; no bug in the history may end it.
            log.exception(HISTORY_UNWRITTEN)

    def _due(self) -> dict[str, HistoryWrite]:
        with self._guard:
            for queue in {*self._counts, *self._now} - self._under_way.keys():
                self._number += 1
                now, counts = self._now.get(queue, SlotsNow()), self._counts.pop(queue, HistoryCounts())
                self._under_way[queue] = HistoryWrite(
                    self._writer, self._number, self._for_s, now.slots, now.memory_bytes, counts
                )
            return dict(self._under_way)

    def _of(self, queue: str) -> HistoryCounts:
        return self._counts.setdefault(queue, HistoryCounts())


def take(tally: BatchTally, counts_of: Callable[[str], HistoryCounts]) -> None:
    """Move what slots noted of their batches into the counts of the batches' queues."""
    busy: dict[str, float] = defaultdict(float)
    while tally.busy:
        queue, seconds = tally.busy.popleft()
        busy[queue] += seconds
    batches: dict[str, list[tuple[str, float, Sequence[float]]]] = defaultdict(list)
    while tally.settled:
        queue, reason, took_s, waited = tally.settled.popleft()
        batches[queue].append((reason, took_s, waited))
    for queue, seconds in busy.items():
        _add(counts_of(queue).sums, {BUSY: round(1000 * seconds)})
    for queue, settled in batches.items():
        count_batches(counts_of(queue), settled)


def count_batches(counts: HistoryCounts, batches: Sequence[tuple[str, float, Sequence[float]]]) -> None:
    """Each batch: why it was released, how long after its claim it was settled, and how long its jobs had waited by then.

    The loop calls no function of penstock per batch, because the busiest workers end thousands of batches in a second.
    """
    reasons = Counter([reason for reason, _, _ in batches])
    items = sum([len(waited) for reason, _, waited in batches if reason != BULK and reason in REASONS])
    _add(counts.sums, {ITEMS: items, **{REASONS[reason]: number for reason, number in reasons.items() if reason in REASONS}})
    _add(counts.waits, Counter([bisect_left(BOUNDS_S, wait_s) for _, _, waited in batches for wait_s in waited]))
    _add(counts.totals, Counter([bisect_left(BOUNDS_S, wait_s + took_s) for _, took_s, waited in batches for wait_s in waited]))


def _add(into: dict[int, int], more: Mapping[int, int]) -> None:
    for number, value in more.items():
        if value:
            into[number] = into.get(number, 0) + value
