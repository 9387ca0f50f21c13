"""What a handler counts in its own process, until it is sent."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import HandlerContractError
from penstock.handlers.metrics.metrics import HandlerMetrics
from penstock.handlers.metrics.samples import OVERFLOW, SERIES_PER_MODEL, TAKEN_NAMES, MetricKind


@pytest.fixture
def metrics() -> HandlerMetrics:
    return HandlerMetrics()


def test_increases_are_sent_once_and_a_gauge_as_it_is(metrics: HandlerMetrics) -> None:
    hits, size = metrics.counter("hits", ("kind",), help="Hits."), metrics.gauge("size")
    hits.inc(kind="image")
    hits.inc(2, kind="image")
    hits.inc(kind=7)
    size.set(3)
    size.set(-4.5)
    found = {(one.name, one.label_values): one.value for one in metrics.drain()}
    assert found == {("hits", ("image",)): 3.0, ("hits", ("7",)): 1.0, ("size", ()): -4.5}
    assert not metrics.unsent
    hits.inc(kind="image")
    [again] = metrics.drain()
    assert (again.value, again.labels, again.help, again.kind) == (1.0, ("kind",), "Hits.", MetricKind.COUNTER)


def test_a_histogram_counts_per_bucket_and_sums(metrics: HandlerMetrics) -> None:
    spread = metrics.histogram("wait_seconds", buckets=(1, 2))
    for value in (0.5, 1.0, 1.5, 9.0):
        spread.observe(value)
    [sample] = metrics.drain()
    assert (sample.bounds, sample.counts, sample.value, sample.series) == ((1.0, 2.0), (2, 1, 1), 12.0, 5)
    spread.observe(2)
    assert metrics.drain()[0].counts == (0, 1, 0)


def test_what_has_no_room_for_a_series_of_its_own_counts_together(metrics: HandlerMetrics) -> None:
    hits = metrics.counter("hits", ("user",))
    for user in range(SERIES_PER_MODEL + 50):
        hits.inc(user=user)
    found = {one.label_values: one.value for one in metrics.drain()}
    assert len(found) == SERIES_PER_MODEL + 1
    assert found[(OVERFLOW,)] == 50
    # The series that came first keep their room.
    hits.inc(user=0)
    assert metrics.drain()[0].label_values == ("0",)


def test_a_histogram_takes_as_much_room_as_prometheus_has_series_of_it(metrics: HandlerMetrics) -> None:
    spread = metrics.histogram("wait_seconds", ("user",), buckets=(1.0, 2.0))
    for user in range(SERIES_PER_MODEL):
        spread.observe(1.0, user=user)
    assert len(metrics.drain()) == SERIES_PER_MODEL // 5 + 1


@pytest.mark.parametrize("name", ["Hits", "hits_total", "1st", "a-b", "wait_bucket", "", "x" * 65, "a\n", *TAKEN_NAMES])
def test_a_name_that_prometheus_or_penstock_cannot_have_is_refused(metrics: HandlerMetrics, name: str) -> None:
    with pytest.raises(HandlerContractError):
        metrics.counter(name)


@pytest.mark.parametrize("labels", [("le",), ("model",), ("slot",), ("Kind",), ("a", "a"), ("__name__",)])
def test_a_label_that_cannot_be_is_refused(metrics: HandlerMetrics, labels: tuple[str, ...]) -> None:
    with pytest.raises(HandlerContractError, match="label"):
        metrics.gauge("size", labels)


def test_buckets_must_ascend(metrics: HandlerMetrics) -> None:
    for buckets in ((2.0, 1.0), (1.0, 1.0), (1.0, float("inf"))):
        with pytest.raises(HandlerContractError, match="ascending"):
            metrics.histogram("wait_seconds", buckets=buckets)


def test_a_name_means_one_metric(metrics: HandlerMetrics) -> None:
    assert metrics.counter("hits", ("kind",)) is metrics.counter("hits", ("kind",))
    for other in (lambda: metrics.gauge("hits", ("kind",)), lambda: metrics.counter("hits")):
        with pytest.raises(HandlerContractError, match="made before, as a counter"):
            other()


def test_a_wrong_use_fails_nothing_and_is_said_once(metrics: HandlerMetrics, capsys: pytest.CaptureFixture[str]) -> None:
    hits = metrics.counter("hits", ("kind",))
    hits.inc(kind="a", more="b")
    hits.inc()
    hits.inc(-1, kind="a")
    hits.inc(float("nan"), kind="a")
    hits.inc("many", kind="a")  # type: ignore[arg-type]
    assert not metrics.unsent
    assert capsys.readouterr().err == "metric hits: its labels are kind, not kind, more\n"


def test_nothing_counts_while_it_is_paused(metrics: HandlerMetrics) -> None:
    hits = metrics.counter("hits")
    with metrics.paused():
        hits.inc()
    assert not metrics.unsent
    hits.inc()
    assert metrics.drain()[0].value == 1


def test_threads_lose_no_count(metrics: HandlerMetrics) -> None:
    hits = metrics.counter("hits")
    sent: list[float] = []

    def count() -> None:
        for _ in range(2_000):
            hits.inc()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        sent += [one.value for one in metrics.drain()]
    sent += [one.value for one in metrics.drain()]
    assert sum(sent) == 8_000
