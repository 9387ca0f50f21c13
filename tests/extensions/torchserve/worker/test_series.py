"""What handlers of archives count, as dashboards made for TorchServe read it."""

from __future__ import annotations

import socket

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from penstock.extensions.torchserve.child.surface.metric_words import Dimension, MetricTypes
from penstock.extensions.torchserve.child.surface.metrics import metrics_of
from penstock.extensions.torchserve.worker.series import MOST_SERIES, TorchServeSeries
from penstock.handlers.metrics.metrics import HandlerMetrics
from penstock.handlers.metrics.samples import MetricSample
from penstock.model_spec import ModelSpec
from penstock.workers.telemetry.handler_series import HandlerSeries

HOST = {"Hostname": socket.gethostname()}
USUAL = {"ModelName": "digits", "Level": "Model", **HOST}


class Page:
    """A worker's page with both names of each metric, and a child with an archive."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ours, self.theirs = HandlerSeries(), TorchServeSeries()
        self.registry.register(self.ours)
        self.registry.register(self.theirs)
        self.restart()

    def restart(self) -> None:
        self.child = HandlerMetrics()
        self.metrics = metrics_of(self.child, "digits", {})

    def send(self, slot: str = "s") -> None:
        samples = self.child.drain()
        self.theirs.add(samples)
        self.ours.add(ModelSpec("digits", "digits.mar"), slot, samples)

    def value(self, name: str, labels: dict[str, str]) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def page() -> Page:
    return Page()


def test_a_gauge_is_the_last_of_all_slots(page: Page) -> None:
    for slot, value in (("a", 3.5), ("b", 2.0), ("a", 2.5)):
        page.metrics.add_time("StepTime", value)
        page.send(slot)
    assert page.value("StepTime", USUAL) == 2.5
    text = generate_latest(page.registry).decode()
    assert "# HELP StepTime Torchserve prometheus gauge metric with unit: ms\n# TYPE StepTime gauge\n" in text
    assert text.count("penstock_model_step_time{") == 2


def test_a_counter_grows_over_children_and_has_no_ending(page: Page) -> None:
    for _ in range(3):
        page.restart()
        page.metrics.add_counter("Hits", 2, None, [Dimension("Kind", "a")])
        page.send()
        page.metrics.add_counter("Hits", 1, None, [Dimension("Kind", "a")])
        page.send()
    assert page.value("Hits", {"Kind": "a", **USUAL}) == 9.0
    assert (
        page.value(
            "penstock_model_hits_total",
            {"model": "digits", "version": "1", "kind": "a", "model_name": "digits", "level": "Model"},
        )
        == 9.0
    )
    assert "# TYPE Hits untyped\n" in generate_latest(page.registry).decode()


def test_a_histogram_has_its_buckets(page: Page) -> None:
    for value in (30, 70, 1_000_000):
        page.metrics.add_time("Took", value, metric_type=MetricTypes.HISTOGRAM)
        page.send()
    assert page.value("Took_bucket", {**USUAL, "le": "50.0"}) == 1.0
    assert page.value("Took_bucket", {**USUAL, "le": "+Inf"}) == 3.0
    assert page.value("Took_count", USUAL) == 3.0
    assert page.value("Took_sum", USUAL) == 1_000_100.0


def test_what_is_not_from_an_archive_is_not_shown(page: Page) -> None:
    page.child.counter("plain").inc()
    page.metrics.add_counter("no prometheus name", 1)
    page.send()
    assert generate_latest(page.registry).decode().count("\n# HELP") + 1 == 2


def test_two_things_of_one_name_do_not_share_a_page(page: Page) -> None:
    page.metrics.add_counter("Size", 1)
    page.send()
    page.restart()
    page.metrics.add_size("Size", 5)
    page.send()
    assert page.value("Size", USUAL) == 1.0


def test_a_lying_child_cannot_fill_the_memory(page: Page) -> None:
    page.metrics.add_counter("Hits", 1)
    (sample,) = page.child.drain()
    page.theirs.add([replace(sample, label_values=(str(number), "Model")) for number in range(MOST_SERIES + 5)])
    assert len(generate_latest(page.registry).decode().splitlines()) == MOST_SERIES + 2


@pytest.mark.parametrize(
    "foreign",
    [
        ("Hits",),
        ("Hits", "Count", "a"),
        ("bad name", "Count", "a", "b"),
        ("Hits", "Count", "a", "a"),
        ("Hits", "Count", "a", "b c"),
    ],
)
def test_a_sample_with_wrong_names_is_refused(foreign: tuple[str, ...], page: Page) -> None:
    page.metrics.add_counter("Hits", 1)
    (sample,) = page.child.drain()
    assert isinstance(sample, MetricSample)
    assert sample.is_sound
    assert not replace(sample, foreign=foreign).is_sound
