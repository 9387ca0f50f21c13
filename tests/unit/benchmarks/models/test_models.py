from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.models.__main__ import RowResults, main, markdown
from benchmarks.models.figures import RowTurn, record, steady
from benchmarks.models.rows import ROWS, Row, chosen, config_text, export_commands
from penstock.errors import PenstockError
from penstock.loadtest.generator.summary import Samples
from penstock.settings.tables import Settings


def _bursts(count: int, size: int, *, every_s: float) -> Samples:
    samples = Samples()
    for burst in range(1, count + 1):
        for number in range(size):
            samples.add(2 * every_s, 200, at=burst * every_s + number * 1e-6)
    return samples


def _block(items_per_s: float, *, foreign_share: float = 0.0, inference_per_s: float = 50.0) -> RowTurn:
    return RowTurn(items_per_s, 40.0, inference_per_s, {"child": 0.02, "gateway": 0.001}, 0.02, (0.1, 0.2), foreign_share)


def test_the_rate_of_bursts_does_not_depend_on_where_the_window_cuts() -> None:
    samples = _bursts(20, 8, every_s=0.25)
    for begin in (0.9, 1.0, 1.2):
        rate, latencies = steady(samples, begin=begin, end=4.6)
        assert rate == pytest.approx(32.0, rel=0.01)
        assert set(latencies) == {0.5}


def test_too_few_answers_make_no_rate() -> None:
    assert steady(_bursts(1, 1, every_s=0.1), begin=0.0, end=1.0) == (0.0, (0.2,))


def test_a_row_is_judged_by_the_loop_of_all_stages() -> None:
    found = record(Row("vision", "onnx", 8), [_block(36.0), _block(40.0)])
    assert (found["ratio"], found["met"], found["judged"]) == (0.95, True, True)
    assert (found["items_per_s"], found["in_process_items_per_s"], found["inference_ratio"]) == (38.0, 40.0, 0.76)
    assert (found["p50_ms"], found["p99_ms"], found["model_ms_per_batch"]) == (100.0, 200.0, 160.0)
    assert not record(Row("vision", "onnx", 8), [_block(35.0)])["met"]


def test_a_row_of_parallel_calls_is_reported_beside_a_loop_of_such_calls_too() -> None:
    row = Row("embeddings", "onnx", 32, threads=2)
    assert row.in_parallel
    assert not Row("vision", "torch.export", 8, threads=2).in_parallel
    found = record(row, [replace(_block(36.0), parallel_per_s=44.0), replace(_block(36.0), parallel_per_s=46.0)])
    assert (found["in_process_parallel_items_per_s"], found["parallel_ratio"], found["ratio"]) == (45.0, 0.8, 0.9)
    assert record(row, [_block(36.0)])["parallel_ratio"] is None


def test_a_row_says_what_the_way_took_of_the_cores() -> None:
    found = record(Row("vision", "onnx", 8), [_block(36.0), _block(40.0)])
    assert (found["cpu_ms_per_item"], found["in_process_cpu_ms_per_item"]) == (20.0, 20.0)
    assert found["way_cpu_ms_per_item"] == {"client": 0.0, "gateway": 1.0, "redis": 0.0, "worker": 0.0}


def test_a_fast_model_is_not_judged() -> None:
    found = record(Row("digits", "onnx", 16), [_block(1.0, inference_per_s=10_000.0)])
    assert (found["judged"], found["met"]) == (False, True)


def test_a_row_measured_beside_others_is_doubtful() -> None:
    assert record(Row("vision", "onnx", 8), [_block(36.0), _block(36.0, foreign_share=0.2)])["doubtful"]


def test_the_settings_of_every_row_can_be_used_and_say_what_the_row_says(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(config_text(ROWS, state_dir=tmp_path / "state", port=0))
    specs = {spec.name: spec for spec in Settings.load(config, env={}).specs()}
    assert len(specs) == len(ROWS)
    for row in ROWS:
        spec = specs[row.name]
        assert (spec.policy.max_batch_size, spec.threads, spec.slots) == (row.batch, row.threads, row.slots)
        assert (spec.runtime.quantize == "int8") == (row.precision == "int8")
        assert (spec.runtime.compile != "off") == (row.runtime == "torch compile")
    assert tomllib.loads(config.read_text())["models"]["vision-torchscript-b8-fp32-t1-w1"]["options"]["outputs"] == ["scores"]


def test_only_the_files_that_rows_load_are_written() -> None:
    """On a borrowed GPU machine, compiling a package for the CPU would waste half a minute."""
    rows = [Row("vision", "torch compile", 8), Row("vision", "torch.export", 8), Row("embeddings", "onnx", 32)]
    [[program, *names]] = export_commands(rows)
    assert program.endswith("examples/vision/export.py")
    assert names == ["--only", "model.pt2", "model.safetensors"]
    assert len(export_commands([*rows, Row("embeddings", "torch.export", 32)])) == 2


def test_rows_are_chosen_by_a_part_of_their_name() -> None:
    assert [row.name for row in chosen(ROWS, quick=False, only="int8")] == ["embeddings-onnx-b32-int8-t1-w1"]
    assert all(row.quick for row in chosen(ROWS, quick=True, only=""))
    with pytest.raises(PenstockError, match="no row's name holds 'jax'"):
        chosen(ROWS, quick=False, only="jax")


def test_a_missed_row_and_a_row_that_failed_differ_in_the_exit_status() -> None:
    assert RowResults([{"met": True}], skipped={"a": "torch is not installed"}).exit_code() == 0
    assert RowResults([{"met": False}]).exit_code() == 1
    assert RowResults([{"met": False}], failed={"a": "broken"}).exit_code() == 2


def test_markdown_prints_the_table_of_the_last_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "models.json"
    out.write_text('{"rows": []}')
    assert main(["--markdown", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("| model | runtime | batch |")
    row = record(Row("vision", "onnx", 8, threads=2), [_block(35.0, foreign_share=0.5)])
    line = "| vision | onnx | 8 | fp32 | 2 | 1 | 35 | 100 | 200 | 40 | 0.875 |  | 0.7 | 160 | MISSED doubtful |"
    assert line in markdown([row])
