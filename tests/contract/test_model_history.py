"""What the store keeps of a model's last days: on a real server, whose clock the tests set."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count

import pytest
import redis

from penstock.broker.records import BatchStamp, ClaimRequest, Ending, NewJob
from penstock.broker.store.library import body
from penstock.broker.store.ops import prefix
from penstock.broker.store.sync import RedisStore
from penstock.extensions.history.store import (
    ACCEPTED,
    COVERED,
    FAILED,
    ITEMS,
    KEPT,
    LAST_BUCKET,
    LENGTHS_S,
    OLDEST,
    REASONS,
    SLOTS,
    SUCCEEDED,
    WAITING,
    WORKERS,
    HistoryCounts,
    HistoryStep,
    HistoryWrite,
    in_steps,
    note_history,
    percentile_s,
    read_history,
)
from penstock.job import JobState, Payload, new_job_id

_START = 1_700_000_000 - 1_700_000_000 % 1800
_CLOCK = "test:clock"
_MODELS = 20


class Historian:
    """A store whose clock stands where the test puts it, and a model in it."""

    def __init__(self, url: str, model: str) -> None:
        source = body().replace("redis.call('TIME')", f"{{redis.call('GET', '{_CLOCK}'), '0'}}")
        assert source != body()
        self.store, self._redis, self.model = RedisStore(url, source=source), redis.Redis.from_url(url), model
        self._numbers = count(1)
        self.at(0)

    def close(self) -> None:
        self._redis.delete(_CLOCK)
        self._redis.close()
        self.store.close()

    def at(self, seconds: int) -> Historian:
        self._redis.set(_CLOCK, _START + seconds)
        return self

    def look(self) -> bool:
        """As a gateway does."""
        return self.store.run(note_history(self.model))

    def write(self, counts: HistoryCounts, *, writer: str = "w", slots: int = 1, number: int | None = None) -> bool:
        """As a worker does."""
        number = next(self._numbers) if number is None else number
        return self.store.run(note_history(self.model, HistoryWrite(writer, number, 13.0, slots, 2**21, counts)))

    def steps(self, level: int = 0) -> dict[int, HistoryStep]:
        """By their begin in seconds since the start of the test."""
        found = in_steps(self.store.run(read_history(self.model, level)).steps, LENGTHS_S[level])
        return {at - _START: step for at, step in found.items()}

    def submit(self, jobs: int) -> None:
        payload = Payload("application/json", b"1")
        self.store.submit([NewJob(new_job_id(self.model), "1", payload, deadline_s=10**6) for _ in range(jobs)])

    def end(self, jobs: int, state: JobState = JobState.SUCCEEDED) -> None:
        claim = self.store.claim(ClaimRequest(self.model, "1", "w", "n", jobs))
        endings = [Ending(job.id, job.token, state, Payload("application/json", b"2")) for job in claim.jobs]
        self.store.finish(endings, worker="w", stamp=BatchStamp())

    def bytes(self) -> int:
        """What all of the model's history takes in the store's memory."""
        keys = [f"{prefix(self.model)}history", *(f"{prefix(self.model)}history:{length}" for length in LENGTHS_S)]
        return sum(self._redis.memory_usage(key, samples=0) or 0 for key in keys)

    def ttls(self) -> list[int]:
        return [int(self._redis.pttl(key)) for key in self._redis.scan_iter(f"{prefix(self.model)}history*")]


@pytest.fixture
def history(redis_url: str, request: pytest.FixtureRequest) -> Iterator[Historian]:
    with closing(Historian(redis_url, f"h{abs(hash(request.node.name)) % 10**9}")) as made:
        yield made


def test_arrivals_and_ends_are_counted_though_only_gateways_look(history: Historian) -> None:
    history.look()
    history.submit(5)
    history.end(2)
    history.end(1, JobState.FAILED)
    assert history.at(5).look()
    [step] = history.steps().values()
    assert (step.sums[ACCEPTED], step.sums[SUCCEEDED], step.sums[FAILED]) == (5, 2, 1)
    assert step.sums[COVERED] == 5000
    assert step.tops[WAITING] == 2
    assert step.tops[OLDEST] == 5000


def test_several_who_look_count_each_job_once(history: Historian) -> None:
    history.look()
    history.submit(4)
    assert [history.at(second).look() for second in (4, 5, 6, 8)] == [True, False, False, True]
    assert sum(step.sums.get(ACCEPTED, 0) for step in history.steps().values()) == 4


def test_what_was_there_before_the_first_look_is_not_counted(history: Historian) -> None:
    history.submit(9)
    history.look()
    history.at(5).look()
    assert ACCEPTED not in history.steps()[0].sums


def test_steps_close_and_add_up_to_longer_ones(history: Historian) -> None:
    history.look()
    for second in range(5, 3600, 5):
        history.submit(1)
        history.at(second).look()
    history.at(3605).look()
    for level in range(4):
        steps = history.steps(level)
        assert sum(step.sums.get(ACCEPTED, 0) for step in steps.values()) == 719, level
        assert set(steps) <= set(range(0, 3700, LENGTHS_S[level])), level
    assert history.steps(2)[300].sums[ACCEPTED] == 60


def test_writes_of_two_workers_add_up(history: Historian) -> None:
    one = HistoryCounts({ITEMS: 3, REASONS["idle"]: 1}, {40: 3}, {8: 3})
    other = HistoryCounts({ITEMS: 1, REASONS["full"]: 2}, {40: 1, 60: 2}, {})
    history.write(one, writer="a", slots=2)
    history.at(5).write(other, writer="b", slots=1)
    [step] = history.steps().values()
    assert step.sums[ITEMS] == 4
    assert (step.totals, step.waits) == ({40: 4, 60: 2}, {8: 3})
    assert (step.tops[SLOTS], step.tops[WORKERS]) == (3, 2)


def test_a_write_that_is_repeated_counts_once(history: Historian) -> None:
    counts = HistoryCounts({ITEMS: 3}, {40: 3}, {8: 3})
    assert [history.write(counts, number=7) for _ in range(3)] == [True, False, False]
    [step] = history.steps().values()
    assert (step.sums[ITEMS], step.totals) == (3, {40: 3})


def test_a_worker_that_was_killed_has_no_slots_soon_after(history: Historian) -> None:
    history.write(HistoryCounts(), slots=2)
    for second in range(5, 45, 5):
        history.at(second).look()
    assert [step.tops.get(SLOTS, 0) for _, step in sorted(history.steps().items())] == [2, 2, 0, 0, 0]


def test_a_clock_that_is_set_back_loses_nothing(history: Historian) -> None:
    history.at(7200).look()
    history.submit(2)
    history.at(3600).look()
    history.submit(3)
    history.at(3605).look()
    history.at(3630).look()
    assert sum(step.sums.get(ACCEPTED, 0) for step in history.steps().values()) == 5
    assert {7200, 3600} <= set(history.steps())


def test_percentiles_come_from_the_histograms_of_all_writers(history: Historian) -> None:
    history.write(HistoryCounts({}, {40: 90}, {}), writer="a")
    history.write(HistoryCounts({}, {48: 10}, {}), writer="b")
    [step] = history.steps().values()
    assert percentile_s(step.totals, step.grain, 0.5) == pytest.approx(0.94, rel=0.01)
    assert percentile_s(step.totals, step.grain, 0.99) == pytest.approx(3.75, rel=0.01)


def _wide(chance: random.Random) -> HistoryCounts:
    """Everything that can be counted, with times over the whole range."""
    sums = {number: chance.randrange(10**5, 10**7) for number in range(1, 20)}
    spread = {number: chance.randrange(1, 10**4) for number in range(LAST_BUCKET + 1)}
    return HistoryCounts(sums, spread, dict(spread))


def _fill(history: Historian, wide: Callable[[], HistoryCounts]) -> None:
    """As many steps of each length as are kept, and some more."""
    second = 0
    for length, kept in zip(reversed(LENGTHS_S), reversed(KEPT), strict=True):
        for _ in range(kept + 8):
            second += length
            history.at(second).write(wide())


def test_twenty_models_and_seven_days_take_at_most_5_mb(redis_url: str) -> None:
    """Each step of the worst kind, by what the store itself says of its memory."""
    chance, used = random.Random(7), 0
    with closing(Historian(redis_url, "full")) as history:
        _fill(history, lambda: _wide(chance))
        used = history.bytes()
        levels = [len(history.steps(level)) for level in range(len(LENGTHS_S))]
        ttls = history.ttls()
    assert used * _MODELS <= 5_000_000, f"{used} bytes per model"
    assert all(kept <= found <= kept + 2 for found, kept in zip(levels, KEPT, strict=True)), levels
    assert all(0 < ttl <= 8 * 86_400_000 for ttl in ttls)


def test_the_usual_step_keeps_its_finest_buckets(history: Historian) -> None:
    for second in range(0, 60, 5):
        history.at(second).write(
            HistoryCounts({ITEMS: 5000, 9: 4000, 10: 5000}, dict.fromkeys(range(30, 45), 500), {8: 1, 9: 7})
        )
    history.at(70).look()
    assert {step.grain for step in history.steps().values()} == {0}
