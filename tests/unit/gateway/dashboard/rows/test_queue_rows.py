"""What the overview shows for a queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.broker.backlog import SlotCapacity
from penstock.broker.records import QueueStats
from penstock.gateway.dashboard.rows.queue_rows import queue_rows, totals
from penstock.gateway.dashboard.rows.series import QueueSamples, Sample
from penstock.gateway.models.queues import QueueView, queue_of
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.model_spec import ModelInfo, SlotInfo, WorkerInfo


def entry(name: str = "square", *, ready: int = 1) -> ModelEntry:
    version = VersionEntry("1", None, None, SlotCapacity(ready_slots=ready, per_s=10.0, full_per_s=10.0))
    return ModelEntry(ModelInfo(name), version, {"1": version})


def stats(name: str = "square", **more: object) -> QueueStats:
    plain = QueueStats(name, 100.0, ready={0: 0, 6: 0, 9: 0}, oldest_age_s={0: 0.0, 6: 0.0, 9: 0.0})
    return replace(plain, **more)  # type: ignore[arg-type]


def queue(found: ModelEntry, known: QueueStats) -> QueueView:
    return queue_of(found, known, now=0.0)


def worker(state: str, error: str = "") -> WorkerInfo:
    return WorkerInfo("w", "here", 1, 0.0, (SlotInfo("square", "1", state, error=error),))


@pytest.mark.parametrize(
    ("ready", "known", "workers", "tone", "word"),
    [
        (1, stats(), [worker("ready")], "idle", "idle"),
        (1, stats(leased=2), [worker("ready")], "good", "running"),
        (1, stats(ready={0: 3, 6: 0, 9: 0}, oldest_age_s={0: 31.0, 6: 0.0, 9: 0.0}), [worker("ready")], "warn", "behind"),
        (1, stats(ready={0: 0, 6: 0, 9: 3}, oldest_age_s={0: 0.0, 6: 0.0, 9: 900.0}), [worker("ready")], "good", "running"),
        (0, stats(), [], "warn", "no worker"),
        (0, stats(ready={0: 1, 6: 0, 9: 0}), [], "bad", "no worker"),
        (0, stats(ready={0: 1, 6: 0, 9: 0}), [worker("loading")], "warn", "loading"),
        (0, stats(), [worker("failed", "no weights")], "bad", "cannot load"),
    ],
)
def test_a_row_shows_the_state_of_its_queue(
    ready: int, known: QueueStats, workers: list[WorkerInfo], tone: str, word: str
) -> None:
    found = entry(ready=ready)
    [row] = queue_rows([queue(found, known)], {"square": found}, {}, workers)
    assert (row.status.tone, row.status.word) == (tone, word)


def test_a_model_that_was_scaled_to_none_is_off_and_no_fault() -> None:
    off = replace(entry(ready=0).default, scale=0)
    found = ModelEntry(ModelInfo("square"), off, {"1": off})
    for known, tone in ((stats(), "idle"), (stats(ready={0: 1, 6: 0, 9: 0}), "warn")):
        [row] = queue_rows([queue(found, known)], {"square": found}, {}, [worker("ready")])
        assert (row.status.tone, row.status.word) == (tone, "off")


def test_a_row_counts_the_slots_that_workers_are_to_have() -> None:
    found = entry()
    busy = replace(worker("ready"), wanted={"square": {"1": 3}})
    [row] = queue_rows([queue(found, stats())], {"square": found}, {}, [busy, busy])
    assert row.slots == 6


def test_rows_that_need_attention_come_first_and_show_all_figures() -> None:
    entries = {"a": entry("a"), "b": entry("b", ready=0)}
    samples = QueueSamples()
    samples.add(Sample(90.0, 1, 10, 10))
    samples.add(Sample(92.0, 4, 30, 20))
    known = stats("a", ready={0: 2, 6: 0, 9: 2}, solo=1, leased=3, delayed=1, inbox=7)
    rows = queue_rows(
        [queue(entries["a"], known), queue(entries["b"], stats("b", ready={0: 1, 6: 0, 9: 0}))],
        entries,
        {"a": samples},
        [],
    )
    assert [row.model for row in rows] == ["b", "a"]
    row = rows[1]
    assert (row.depth, row.bands, row.in_flight, row.delayed, row.inbox) == (5, (("interactive", 3), ("bulk", 2)), 3, 1, 7)
    assert (row.accepted_per_s, row.ended_per_s, row.backlog_s) == (10.0, 5.0, 0.5)
    assert rows[0].ended_per_s is None
    assert (totals(rows).depth, totals(rows).in_flight, totals(rows).ended_per_s, totals(rows).inbox) == (6, 3, 5.0, 7)
    assert totals([]).ended_per_s is None
