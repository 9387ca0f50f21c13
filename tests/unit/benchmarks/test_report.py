from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.main_path.__main__ import RUNS, exit_code
from benchmarks.main_path.engine_figures import drain_rate
from benchmarks.report import ACCEL_LIMIT_RPS, FIGURES, Findings, print_report, write_report

PROMISED = {
    "noop_sync_c64_rps",
    "cpu_us_per_noop",
    "lone_vs_floor",
    "accel_100k_ratio",
    "noop_sync_c1_p50_ms",
    "noop_sync_c1_p50_everysec_ms",
    "accel_saturated_ratio",
    "accel_80_p99_batches",
    "accel_120_goodput_ratio",
    "submit_rps",
    "engine_jobs_per_s",
    "deep_queue_ratio",
    "bytes_per_job",
}


def test_every_promised_figure_is_known() -> None:
    assert {figure.name for figure in FIGURES} >= PROMISED


def test_a_target_is_met_from_its_own_side() -> None:
    by_name = {figure.name: figure for figure in FIGURES}
    assert by_name["submit_rps"].met(3_000)
    assert not by_name["submit_rps"].met(2_999)
    assert by_name["deep_queue_ratio"].met(1.5)
    assert not by_name["deep_queue_ratio"].met(1.51)
    assert by_name["bytes_per_job"].met(1e9)


def test_a_missed_figure_is_an_exit_code_and_a_word_in_the_table() -> None:
    findings = Findings(figures={"submit_rps": 1_000.0}, costs_us={"submit": {"gateway": 12.5, "total": 12.5}})
    assert exit_code(findings) == 1
    assert exit_code(Findings(figures={"submit_rps": 9_000.0})) == 0
    out = io.StringIO()
    print_report(findings, Console(file=out, width=200))
    assert "MISSED" in out.getvalue()
    assert "12.5" in out.getvalue()


def test_the_file_is_flat_and_a_partial_run_keeps_the_other_figures(tmp_path: Path) -> None:
    out = tmp_path / "results" / "bench.json"
    write_report(Findings(figures={"submit_rps": 4_000.0, "bytes_per_job": 900.0}), out, keep_others=False)
    write_report(Findings(figures={"submit_rps": 5_000.0}, detail={"submit": {"seconds": 3.0}}), out, keep_others=True)
    assert msgspec.json.decode(out.read_bytes()) == {"submit_rps": 5_000.0, "bytes_per_job": 900.0}
    detail = msgspec.json.decode((tmp_path / "results" / "bench_detail.json").read_bytes())
    assert set(detail["measured_at"]) == {"submit_rps", "bytes_per_job"}
    assert detail["machine"]["cores"] >= 1
    write_report(Findings(figures={"submit_rps": 1.0}), out, keep_others=False)
    assert msgspec.json.decode(out.read_bytes()) == {"submit_rps": 1.0}


def test_the_limit_of_the_stand_in_is_1524_items_a_second() -> None:
    assert round(ACCEL_LIMIT_RPS, 1) == 1523.8


def test_a_drain_is_rated_without_its_start_and_end() -> None:
    points = [(0, 0.0), (100, 5.0), (300, 5.2), (800, 5.7), (950, 9.0), (1_000, 20.0)]
    assert round(drain_rate(points, 1_000)) == 1_000


def test_runs_have_one_name_each() -> None:
    assert list(RUNS) == ["noop", "everysec", "lone", "gateway_calls", "accel", "submit", "engine", "deep_queue"]
