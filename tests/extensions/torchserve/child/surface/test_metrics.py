"""`context.metrics` of archives: which of our series each of TorchServe's calls counts in."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.child.surface.metric_words import DeclaredMetric, Dimension, MetricTypes
from penstock.extensions.torchserve.child.surface.metrics import MOST_METRICS, ArchiveMetrics, Metric, metrics_of
from penstock.handlers.metrics.metrics import HandlerMetrics
from penstock.handlers.metrics.samples import MetricKind, naming_fault

USUAL = {"model_name": "digits", "level": "Model"}
DECLARED = {
    "counter": [
        {"name": "Hits", "unit": "count", "dimensions": ["ModelName", "Level"]},
        {"name": "Kinds", "dimensions": ["Kind"]},
    ],
    "gauge": [{"name": "HandlerTime", "unit": "ms", "dimensions": ["ModelName", "Level"]}],
    "histogram": [{"name": "Took", "unit": "ms", "dimensions": ["ModelName", "Level"]}],
}


@pytest.fixture
def metrics(counted: HandlerMetrics) -> ArchiveMetrics:
    return metrics_of(counted, "digits", DECLARED)


def series(counted: HandlerMetrics) -> list[tuple[str, str, float, dict[str, str]]]:
    """Return kind, name, value and labels of what was counted since the last call."""
    return [
        (one.kind.value, one.name, one.value, dict(zip(one.labels, one.label_values, strict=True))) for one in counted.drain()
    ]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda to: to.add_counter("Hits", 2), ("counter", "hits", 2.0, USUAL)),
        (lambda to: to.add_counter("Fresh", 1, 0), ("counter", "fresh", 1.0, USUAL)),
        (lambda to: to.add_time("HandlerTime", 3.5, None, "ms"), ("gauge", "handler_time", 3.5, USUAL)),
        (lambda to: to.add_time("InferenceTime", 0.2, unit="s"), ("gauge", "inference_time", 0.2, USUAL)),
        (lambda to: to.add_size("GPUMemory", 3, None, "GB"), ("gauge", "gpu_memory", 3.0, USUAL)),
        (lambda to: to.add_percent("Use", 50), ("gauge", "use", 50.0, USUAL)),
        (lambda to: to.add_error("Bad", "no such file"), ("counter", "bad", 1.0, {"level": "Error"})),
        (lambda to: to.add_error("Bad", 3), ("counter", "bad", 3.0, {"level": "Error"})),
        (lambda to: to.add_metric("M", 1, "count"), ("counter", "m", 1.0, USUAL)),
        (
            lambda to: to.add_metric("Size", 4, "MB", None, [Dimension("Kind", "a")], MetricTypes.GAUGE),
            ("gauge", "size", 4.0, {"kind": "a", **USUAL}),
        ),
        # TorchServe drops a declared metric whose dimensions are without ModelName and Level.
        (lambda to: to.add_counter("Kinds", 1, None, [Dimension("Kind", "a")]), ("counter", "kinds", 1.0, {"kind": "a"})),
        (lambda to: to.get_metric("Kinds").add_or_update(5, ["b"]), ("counter", "kinds", 5.0, {"kind": "b"})),
        (lambda to: to.get_metric("Kinds").update(5, "id", [Dimension("Kind", "c")]), ("counter", "kinds", 5.0, {"kind": "c"})),
        (
            lambda to: to.add_metric_to_cache("Own", "ms", ["a"], MetricTypes.GAUGE).add_or_update(2, ["x"], "id"),
            ("gauge", "own", 2.0, {"a": "x"}),
        ),
    ],
)
def test_a_call_is_counted(
    call: Callable[[ArchiveMetrics], None], expected: Any, metrics: ArchiveMetrics, counted: HandlerMetrics
) -> None:
    call(metrics)
    assert series(counted) == [expected]


def test_a_histogram_in_milliseconds_has_buckets_for_milliseconds(metrics: ArchiveMetrics, counted: HandlerMetrics) -> None:
    metrics.get_metric("Took", MetricTypes.HISTOGRAM).add_or_update(30, ["digits", "Model"])
    (sample,) = counted.drain()
    assert sample.kind is MetricKind.HISTOGRAM
    # TorchServe's buckets end at ten, as if the values were seconds.
    assert sample.counts[sample.bounds.index(50.0)] == 1
    metrics.add_metric_to_cache("Words", "count", [], MetricTypes.HISTOGRAM).add_or_update(200)
    (sample,) = counted.drain()
    assert sample.counts[sample.bounds.index(300.0)] == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda to: to.get_metric("Kinds").add_or_update(1, ["a", "b"]),
        lambda to: to.get_metric("Kinds").add_or_update(1),
        lambda to: to.add_counter("Hits", -1),
        lambda to: to.add_counter("Hits", "many"),
        lambda to: to.add_metric("HandlerTime", 1, "ms"),
    ],
)
def test_a_wrong_call_fails_no_request_and_is_not_counted(
    call: Callable[[ArchiveMetrics], None],
    metrics: ArchiveMetrics,
    counted: HandlerMetrics,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(3):
        call(metrics)
    assert series(counted) == []
    said = caplog.text + capsys.readouterr().err
    assert ("cannot be counted" in said) or ("is not counted" in said)
    assert len(said.splitlines()) == 1


def test_a_metric_that_nobody_made_is_not_found(metrics: ArchiveMetrics) -> None:
    assert metrics.get_metric("Hits").dimension_names == ["ModelName", "Level"]
    with pytest.raises(KeyError, match="name 'Hits' doesn't exist"):
        metrics.get_metric("Hits", MetricTypes.GAUGE)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda to: to.add_time("T", 1, None, "min"), ValueError, "unit for a timed metric"),
        (lambda to: to.add_size("S", 1, None, "TB"), ValueError, "unit for size based metric"),
        (lambda to: to.add_metric_to_cache(5, "ms"), TypeError, "`metric_name` must be a str"),
        (lambda to: to.add_metric_to_cache("Q", "ms", [], "gauge"), TypeError, "`metric_type` must be a MetricTypes"),
    ],
)
def test_what_torchserve_refuses_is_refused(
    call: Callable[[ArchiveMetrics], None], error: type[Exception], said: str, metrics: ArchiveMetrics
) -> None:
    with pytest.raises(error, match=said):
        call(metrics)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"counters": []}, "counter, gauge and histogram, not 'counters'"),
        ({"counter": {"name": "x"}}, "must be a list"),
        ({"counter": [{"unit": "ms"}]}, "an entry without name"),
        ({"counter": ["Hits"]}, "an entry without name"),
        ({"gauge": [{"name": "x", "dimensions": "a"}]}, "wrong dimensions"),
    ],
)
def test_a_wrong_metrics_file_is_named(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(HandlerLoadError, match=said):
        metrics_of(HandlerMetrics(), "digits", declared)


def test_the_log_has_torchserves_lines_on_request(counted: HandlerMetrics, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = metrics_of(counted, "digits", {}, lines=True)
    metrics.set_request_ids({0: "first", 1: "second"})
    metrics.add_time("HandlerTime", 3.5, 1)
    metrics.add_counter("Hits", 1, None, [Dimension("Kind", "a")])
    timed, hits = capsys.readouterr().out.splitlines()
    host = re.escape(socket.gethostname())
    assert re.fullmatch(
        rf"HandlerTime\.ms:3\.5\|#ModelName:digits,Level:Model\|#hostname:{host},requestID:second,timestamp:\d+", timed
    )
    labels = rf"\|#Kind:a,ModelName:digits,Level:Model\|#hostname:{host}"
    assert re.fullmatch(rf"Hits\.count:1{labels},requestID:first,second,timestamp:\d+", hits)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("HandlerTime", "handler_time"),
        ("GPUMemoryUsed", "gpu_memory_used"),
        ("Requests2XX", "requests2_xx"),
        ("ts_handler_preprocess", "ts_handler_preprocess"),
        ("my metric/s", "my_metric_s"),
        ("2nd", "metric_2nd"),
        ("é", "metric_"),
        ("requests_total", "requests_total_value"),
        ("load_seconds", "load_seconds_value"),
        ("x" * 100, "x" * 50),
    ],
)
def test_every_name_of_theirs_has_one_of_ours(name: str, own: str) -> None:
    found = DeclaredMetric(name, "unit", ("ModelName", "model", "Le"), MetricTypes.COUNTER)
    assert (found.own_name, found.own_labels) == (own, ("model_name", "model_", "le_"))
    assert not naming_fault(found.own_name, found.own_labels)


def test_a_metric_on_its_own_is_counted_by_the_model(metrics: ArchiveMetrics, counted: HandlerMetrics) -> None:
    one = Metric("Alone", 1, "ms", [Dimension("Kind", "a")], "id")
    assert str(one).startswith("Alone.Milliseconds:1|#Kind:a|#hostname:")
    assert (one.to_dict()["MetricName"], one.to_dict()["Unit"]) == ("Alone", "Milliseconds")
    one.update(3)
    assert series(counted) == [("counter", "alone", 3.0, {"kind": "a"})]


def test_names_made_of_requests_do_not_fill_the_memory(
    metrics: ArchiveMetrics, counted: HandlerMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MOST_METRICS + 50):
        metrics.add_counter(f"request_{number}", 1)
        metrics.add_metric_to_cache(f"own_{number}", "ms").add_or_update(1)
    assert sum(map(len, metrics.cache.values())) == MOST_METRICS
    assert len(counted.drain()) <= MOST_METRICS
    assert caplog.text.count("nor any other new one") == 1
    metrics.add_counter("request_1", 1)
    assert [name for _, name, _, _ in series(counted)] == ["request_1"]
