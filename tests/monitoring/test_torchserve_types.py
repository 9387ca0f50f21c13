"""One metric of TorchServe's has one type, whether a gateway's page or a worker's shows it, and in either format."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from penstock.extensions.torchserve.child.surface.metrics import metrics_of
from penstock.extensions.torchserve.gateway.metrics import TorchServeCounts, TorchServeFamily, torchserve_text
from penstock.extensions.torchserve.worker.series import TorchServeSeries
from penstock.handlers.metrics.metrics import HandlerMetrics
from penstock.job import BatchRecord
from tests.monitoring.prometheus import program

COUNTERS = ("ts_inference_requests_total", "ts_inference_latency_microseconds", "Requests2XX")


def worker_registry() -> CollectorRegistry:
    """A handler that counts under the names that a gateway's page has, too."""
    child, theirs, registry = HandlerMetrics(), TorchServeSeries(), CollectorRegistry()
    metrics = metrics_of(child, "digits", {})
    for name in COUNTERS:
        metrics.add_counter(name, 2)
    metrics.add_time("QueueTime", 3.5)
    theirs.add(child.drain())
    registry.register(theirs)
    return registry


def gateway_page() -> str:
    counts = TorchServeCounts()
    counts.count_request("digits", "")
    counts.count_answer("digits", "", BatchRecord("b", 1, "idle", inference_s=0.1), 0.2)
    return torchserve_text(counts, [(200, 1.0)], [], Path("/")).decode()


def types(page: str) -> dict[str, str]:
    return dict(line.split()[2:] for line in page.splitlines() if line.startswith("# TYPE"))


def test_a_counter_has_one_type_on_both_pages() -> None:
    # Regression: a gateway called these counters, a worker called all of them untyped.
    worker, gateway = types(generate_latest(worker_registry()).decode()), types(gateway_page())
    assert worker == {name: gateway[name] for name in worker}
    assert [worker[name] for name in COUNTERS] == ["counter", "untyped", "untyped"]
    assert set(worker) == {*COUNTERS, "QueueTime"}


def test_prometheus_own_parsers_read_both_pages() -> None:
    for page in (generate_latest(worker_registry()).decode(), gateway_page()):
        found = {family.name: family for family in text_string_to_metric_families(page)}
        kinds = {name: (one.type, one.samples[0].name) for name, one in found.items() if one.samples}
        assert kinds["ts_inference_requests"] == ("counter", "ts_inference_requests_total")
        assert kinds["Requests2XX"] == ("unknown", "Requests2XX")
    page = generate_openmetrics(worker_registry()).decode()  # type: ignore[no-untyped-call]
    families = {family.name: family.type for family in openmetrics_families(page)}  # type: ignore[no-untyped-call]
    assert families["ts_inference_requests"] == "counter"
    assert families["Requests2XX"] == "unknown"


@pytest.mark.parametrize("name", ["worker", "gateway"])
def test_promtool_reads_a_page_and_finds_no_fault_with_its_types(name: str) -> None:
    page = generate_latest(worker_registry()).decode() if name == "worker" else gateway_page()
    command = [program("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=page, capture_output=True, text=True, check=False, timeout=60)
    # 3: it would give TorchServe's metrics other names; a page that it cannot read is 1.
    assert done.returncode in (0, 3), done.stderr
    assert '"_total" suffix' not in done.stderr
    assert "error while linting" not in done.stderr


def test_a_counter_without_the_ending_would_be_found_fault_with() -> None:
    # What the test above looks for is there where the type is wrong.
    family = TorchServeFamily("Requests2XX", "counter", "Count", [((), 1.0)])
    wrong = "\n".join(family.lines()).replace("untyped", "counter") + "\n"
    done = subprocess.run([program("promtool"), "check", "metrics"], input=wrong, capture_output=True, text=True, check=False)
    assert '"_total" suffix' in done.stderr
