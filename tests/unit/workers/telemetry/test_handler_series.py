"""What handlers counted, added up by the supervisor and shown to Prometheus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from penstock.handlers.metrics.metrics import HandlerMetrics
from penstock.handlers.metrics.samples import OVERFLOW, SERIES_PER_MODEL, TAKEN_NAMES, MetricKind, MetricSample
from penstock.model_spec import ModelSpec
from penstock.workers.telemetry.handler_series import METRIC_OVERFLOW, METRIC_REFUSED, HandlerSeries

SPEC, OTHER = ModelSpec("m", "m.py", "2"), ModelSpec("n", "n.py")
OURS = {"model": "m", "version": "2"}


class Page:
    """One supervisor's page, and a child."""

    def __init__(self) -> None:
        self.series = HandlerSeries()
        self.registry = CollectorRegistry()
        self.registry.register(self.series)
        self.child = HandlerMetrics()

    def send(self, spec: ModelSpec = SPEC, slot: str = "s") -> None:
        self.series.add(spec, slot, self.child.drain())

    def restart(self) -> None:
        self.child = HandlerMetrics()

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"penstock_model_{name}", labels)

    def text(self) -> str:
        return generate_latest(self.registry).decode()


@pytest.fixture
def page() -> Page:
    return Page()


def test_a_counter_grows_over_batches_children_and_restarts(page: Page) -> None:
    for slot in ("a", "a", "b"):
        page.restart()
        hits = page.child.counter("hits", ("kind",), help="Hits of the cache.")
        hits.inc(2, kind="image")
        page.send(slot=slot)
        hits.inc(kind="image")
        page.send(slot=slot)
    assert page.value("hits_total", **OURS, kind="image") == 9.0
    assert "# HELP penstock_model_hits_total Hits of the cache.\n# TYPE penstock_model_hits_total counter\n" in page.text()


def test_each_slot_has_a_gauge_of_its_own(page: Page) -> None:
    for slot, value in (("first", 1.0), ("second", 5.0), ("first", 3.0)):
        page.restart()
        page.child.gauge("size").set(value)
        page.send(slot=slot)
    assert [page.value("size", **OURS, slot=number) for number in ("0", "1")] == [3.0, 5.0]


def test_a_histogram_is_written_as_prometheus_reads_it(page: Page) -> None:
    spread = page.child.histogram("wait_seconds", buckets=(1, 2))
    for value in (0.5, 1.5, 9.0):
        spread.observe(value)
        page.send()
    assert [page.value("wait_seconds_bucket", **OURS, le=bound) for bound in ("1.0", "2.0", "+Inf")] == [1.0, 2.0, 3.0]
    assert (page.value("wait_seconds_count", **OURS), page.value("wait_seconds_sum", **OURS)) == (3.0, 11.0)


def test_models_with_a_metric_of_one_name_share_the_page(page: Page) -> None:
    page.child.counter("hits", ("kind",)).inc(kind="a")
    page.send()
    page.restart()
    page.child.counter("hits").inc(4)
    page.send(OTHER)
    assert page.value("hits_total", model="n", version="1") == 4.0
    assert page.text().count("# TYPE penstock_model_hits_total") == 1


def test_a_name_of_another_kind_is_left_out_and_said_once(page: Page) -> None:
    page.child.histogram("x").observe(1.0)
    page.send()
    page.restart()
    gauge = page.child.gauge("x")
    with capture_logs() as lines:
        for value in (1.0, 2.0):
            gauge.set(value)
            page.send(OTHER)
    assert [(line["event"], line["model"], line["metric"]) for line in lines] == [(METRIC_REFUSED, "n", "x")]
    assert page.text().count("# TYPE penstock_model_x ") == 1


def test_the_children_of_a_model_together_have_a_bound_and_what_is_beyond_it_counts_together(page: Page) -> None:
    with capture_logs() as lines:
        for slot in ("a", "b"):
            page.restart()
            hits = page.child.counter("hits", ("user",))
            for user in range(SERIES_PER_MODEL - 50):
                hits.inc(user=f"{slot}{user}")
            page.send(slot=slot)
    assert [(line["event"], line["model"]) for line in lines] == [(METRIC_OVERFLOW, "m")]
    assert page.value("hits_total", **OURS, user=OVERFLOW) == SERIES_PER_MODEL - 100
    assert page.text().count("\npenstock_model_hits_total{") == SERIES_PER_MODEL + 1
    page.restart()
    page.child.counter("hits", ("user",)).inc(user="mine")
    page.send(OTHER)
    assert page.value("hits_total", model="n", version="1", user="mine") == 1.0


def test_names_without_labels_have_a_bound_too(page: Page) -> None:
    for number in range(5 * SERIES_PER_MODEL):
        page.child.counter(f"c{number}").inc()
    page.send()
    assert page.text().count("\npenstock_model_") == 2 * SERIES_PER_MODEL


@pytest.mark.parametrize(
    "sample",
    [
        MetricSample('x{a="b"} 1\nevil', MetricKind.COUNTER, 1.0),
        MetricSample("x", MetricKind.COUNTER, -1.0),
        MetricSample("x", MetricKind.GAUGE, float("nan")),
        MetricSample("x", MetricKind.COUNTER, 1.0, ("a",), ("1", "2")),
        MetricSample("x", MetricKind.COUNTER, 1.0, ("model",), ("other",)),
        MetricSample("x", MetricKind.HISTOGRAM, 1.0),
        MetricSample("x", MetricKind.HISTOGRAM, 1.0, bounds=(1.0, 2.0), counts=(1, 1)),
        MetricSample("load_seconds", MetricKind.GAUGE, 1.0),
    ],
)
def test_what_no_honest_child_sends_is_left_out(page: Page, sample: MetricSample) -> None:
    with capture_logs() as lines:
        page.series.add(SPEC, "s", [sample])
    assert [line["event"] for line in lines] == [METRIC_REFUSED]
    assert page.text() == ""


def test_a_label_value_is_escaped(page: Page) -> None:
    page.child.counter("hits", ("kind",)).inc(kind='a"} 1\nevil')
    page.send()
    assert page.text().splitlines()[-1] == r'penstock_model_hits_total{kind="a\"} 1\nevil",model="m",version="2"} 1.0'


def test_no_handler_can_take_the_name_of_a_metric_of_ours() -> None:
    text = (Path(__file__).parents[4] / "docs" / "reference" / "metrics.md").read_text("utf-8")
    assert set(re.findall(r"`penstock_model_([a-z_]+)`", text)) == set(TAKEN_NAMES)
