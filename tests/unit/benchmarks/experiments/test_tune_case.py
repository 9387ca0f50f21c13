from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.experiments import tune_case
from benchmarks.experiments.tune_case import BEGINS, CASES, DOCS, ENDS, RESULTS, command, put_into, save, saved
from benchmarks.stack import EXAMPLES
from penstock.errors import BadRequest
from penstock.tune.sweep_file import read_sweep
from tests.extensions.pipelines.tune.made import result


def test_results_of_one_device_leave_those_of_the_other(tmp_path: Path) -> None:
    path = tmp_path / "results" / "tune_case.json"
    save({"cuda": result("first")}, path)
    save({"cpu": result("second")}, path)
    assert {device: each.pipeline for device, each in saved(path).items()} == {"cuda": "first", "cpu": "second"}
    save({"cuda": result("third")}, path)
    assert saved(path)["cuda"] == result("third")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text('{"noop": 4}')
    with pytest.raises(BadRequest, match="holds no results"):
        saved(path)


def test_the_page_gets_the_saved_table_between_its_marks(tmp_path: Path) -> None:
    page, path = tmp_path / "tune.md", tmp_path / "tune_case.json"
    page.write_text(f"before\n{BEGINS}old\n{ENDS}after\n")
    assert put_into(page, path) == "No results are kept yet: `make tune-case` writes them.\n"
    save({"cpu": result()}, path)
    told = put_into(page, path)
    assert page.read_text() == f"before\n{BEGINS}{told}{ENDS}after\n"
    assert "| detector | cpu | auto | fp32 | 2 | 1 | 1 | 12 | 12 | 30 | 90 | yes | winner, measured |" in told
    assert "| pose | cpu | auto | fp32 | 1 | 1 | 1 |  |  |  |  |  |  |" in told
    assert "(../reports/tune-case.html)" in told
    page.write_text("no marks")
    with pytest.raises(BadRequest, match="no place for the results"):
        put_into(page, path)


def test_the_command_searches_the_case_with_the_space_of_its_device(tmp_path: Path) -> None:
    words = command("cpu", budget="10m", quick=False, report=tmp_path / "result.json")
    assert words[3:5] == ["tune", "animated-drawings"]
    assert Path(words[words.index("--config") + 1]).exists()
    assert words[words.index("--space") + 1] == "device=cpu"
    assert words[words.index("--slo") + 1] == CASES["cpu"].slo
    assert "batch_size=1,4" in command("cuda", budget="1m", quick=True, report=tmp_path / "result.json")


def test_the_sweep_of_the_detector_has_every_dimension() -> None:
    assert read_sweep(EXAMPLES / "detection" / "sweep.yaml") == {
        "batch_size": [1, 2, 4, 8],
        "slots": [1, 2],
        "threads": [1, 2],
        "runtime": ["torch", "onnx"],
        "precision": ["fp32", "bf16"],
        "compile": ["off", "default"],
        "max_wait_s": [0.01],
        "device": ["cpu"],
    }


def test_the_page_holds_what_was_measured_last(tmp_path: Path) -> None:
    page = tmp_path / DOCS.name
    page.write_text(DOCS.read_text("utf-8"))
    put_into(page, RESULTS)
    assert page.read_text("utf-8") == DOCS.read_text("utf-8"), "run `python -m benchmarks.experiments.tune_case --docs`"
    kept = saved(RESULTS) if RESULTS.exists() else {}
    reports = DOCS.parents[1] / "reports"
    assert [device for device in kept if not (reports / tune_case.CASES[device].report).exists()] == []


@pytest.mark.parametrize("quick", [True, False])
def test_a_quick_try_leaves_the_kept_results_alone(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    written: list[Path] = []
    monkeypatch.setattr(tune_case, "write_files", lambda: None)
    monkeypatch.setattr(tune_case, "_searched", lambda device, options: result())
    monkeypatch.setattr(tune_case, "write_pipeline_report", lambda found, path: written.append(path))
    monkeypatch.setattr(tune_case, "save", lambda found, path: written.append(path))
    assert tune_case.main(["--device", "cpu", *(["--quick"] if quick else [])]) == 0
    assert [path.name for path in written] == ["tune-case.html", "tune_case.json"]
    assert all(("build" in path.parts) is quick for path in written)
