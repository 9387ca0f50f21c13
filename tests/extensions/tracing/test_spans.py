from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.errors import ConfigError
from penstock.extensions.tracing import spans
from penstock.extensions.tracing.gateway import tracing
from penstock.extensions.tracing.worker import batch_spans

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("env", "asked"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_SERVICE_NAME": "shop"}, False),
    ],
)
def test_tracing_is_on_only_where_somebody_is_to_be_told(env: dict[str, str], asked: bool) -> None:
    assert spans.asked_for(env) is asked


def test_nothing_is_traced_without_being_asked_for() -> None:
    assert tracing({}) is None
    assert batch_spans({}) == ()


def test_without_settings_nothing_of_the_package_is_loaded() -> None:
    # redis-py itself imports OpenTelemetry metrics if the package is installed; only penstock would import spans and exporters.
    code = (
        "import sys, penstock.extensions.tracing.gateway as g, penstock.extensions.tracing.worker as w\n"
        "assert g.tracing({}) is None and w.batch_spans({}) == ()\n"
        "found = [name for name in sys.modules if name.startswith(('opentelemetry.sdk.trace', 'opentelemetry.exporter'))]\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_package_a_worker_and_a_gateway_run_on_untraced() -> None:
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'opentelemetry': raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import penstock.extensions.tracing.gateway as g, penstock.extensions.tracing.worker as w\n"
        f"assert g.tracing({ENDPOINT!r}) is None and w.batch_spans({ENDPOINT!r}) == ()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "penstock-inference[otel]" in ran.stdout


def test_an_exporter_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigError, match="'carrier_pigeon'"):
        spans.provider("x", {"OTEL_TRACES_EXPORTER": "carrier_pigeon"})


def test_a_collector_that_is_away_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        def shutdown(self) -> None:
            import threading

            threading.Event().wait()

    monkeypatch.setattr(spans, "FLUSH_S", 0.05)
    spans.close(Stuck())  # type: ignore[arg-type]
