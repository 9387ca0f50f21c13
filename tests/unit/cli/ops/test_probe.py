from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from typer.testing import CliRunner

from penstock.cli.ops.probe import WorkerFigures, app, comes_and_goes, parse_figures, serving_limits, stuck, unloaded
from penstock.errors import ConfigError
from penstock.model_spec import ModelSpec, ScalingPolicy

SCRAPE = """\
# HELP penstock_worker_up Ready slots.
# TYPE penstock_worker_up gauge
penstock_worker_up{model="digits",worker="w"} 2.0
penstock_worker_up{model="slow",worker="w"} 0.0
# TYPE penstock_worker_wanted gauge
penstock_worker_wanted{model="digits",worker="w"} 2.0
penstock_worker_wanted{model="slow",worker="w"} 1.0
penstock_worker_wanted{model="off",worker="w"} 0.0
# TYPE penstock_worker_last_consumed_timestamp_seconds gauge
penstock_worker_last_consumed_timestamp_seconds{model="digits",worker="w"} 1000.0
"""
LIMITS = {"digits": 105.0}
STEADY = ModelSpec("m", "1", "m:M")
IDLE = replace(STEADY, scaling=ScalingPolicy(min_slots=0, max_slots=1, goal_s=1.0, idle_unload_s=600.0))


def test_a_workers_own_figures_are_read_by_model() -> None:
    seen = parse_figures(SCRAPE)
    assert (seen.ready, seen.consumed_at) == ({"digits": 2.0, "slow": 0.0}, {"digits": 1000.0})
    assert seen.wanted == {"digits": 2.0, "slow": 1.0, "off": 0.0}


def test_a_model_without_a_ready_slot_is_named() -> None:
    assert unloaded(parse_figures(SCRAPE), ["digits", "slow", "other"]) == ["slow: no ready slot", "other: no ready slot"]


@pytest.mark.parametrize("wanted", [{"other": 1.0}, {"m": 0.0, "other": 1.0}])
def test_a_model_that_is_to_take_no_jobs_is_no_fault_of_its_worker(wanted: dict[str, float]) -> None:
    """Regression: an engine restarted a healthy worker again and again whose model was scaled to none, paused or unloaded."""
    assert serving_limits([STEADY], WorkerFigures(wanted=wanted)) == {}


def test_a_worker_of_a_release_that_does_not_say_which_models_take_jobs_is_asked_for_all() -> None:
    assert serving_limits([STEADY], WorkerFigures(ready={"m": 1.0})).keys() == {"m"}


def test_a_model_that_a_job_has_loaded_may_take_as_long_as_its_load() -> None:
    seen = WorkerFigures(wanted={"m": 1.0})
    [idle], [steady] = serving_limits([IDLE], seen).values(), serving_limits([STEADY], seen).values()
    assert idle - steady == IDLE.limits.load_timeout_s
    assert (comes_and_goes(IDLE), comes_and_goes(STEADY)) == (True, False)


@pytest.mark.parametrize(
    ("oldest_s", "now", "well"),
    [
        (0.0, 9_999.0, True),  # no job waits, so there was nothing to claim
        (500.0, 1_050.0, True),  # jobs wait, but the worker claimed from the queue lately
        (90.0, 2_000.0, True),  # the job was just submitted, so the next probe decides
        (500.0, 2_000.0, False),
    ],
)
def test_a_worker_is_stuck_when_jobs_wait_and_it_has_claimed_none_for_longer_than_a_batch_may_take(
    oldest_s: float, now: float, well: bool
) -> None:
    assert (stuck(WorkerFigures(consumed_at={"digits": 1_000.0}), {"digits": (oldest_s, now)}, LIMITS) == []) is well


def test_a_worker_that_never_claimed_though_jobs_wait_is_stuck() -> None:
    assert stuck(WorkerFigures(), {"digits": (500.0, 2_000.0)}, LIMITS) == [
        "digits: a job has waited for 500 s, and none was claimed for 105 s"
    ]


def test_a_gateway_that_does_not_listen_is_not_well() -> None:
    done = CliRunner().invoke(app, ["gateway", "--url", "http://127.0.0.1:9", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"well": False, "faults": ["the gateway does not listen yet"]}


def test_a_worker_without_a_metrics_port_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="metrics port"):
        CliRunner().invoke(app, ["worker"], catch_exceptions=False)


@pytest.fixture
def metrics_port() -> Iterator[int]:
    """A port that serves `SCRAPE`."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(SCRAPE.encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize(("model", "code"), [("digits", 0), ("slow", 1), ("off", 0)])
def test_a_store_that_is_away_is_not_the_workers_fault(
    model: str, code: int, metrics_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER__METRICS_PORT", str(metrics_port))
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://127.0.0.1:9/0")
    monkeypatch.setenv("PENSTOCK_MODELS", json.dumps({model: {"source": "m:S"}}))
    assert CliRunner().invoke(app, ["worker"]).exit_code == code


def test_a_worker_whose_port_is_closed_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER__METRICS_PORT", "9")
    done = CliRunner().invoke(app, ["worker"])
    assert (done.exit_code, "does not answer" in done.stderr) == (1, True)
