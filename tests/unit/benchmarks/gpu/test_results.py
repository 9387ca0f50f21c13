from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.results import GpuResults, resume, set_aside_path, sources_digest
from benchmarks.models.rows import Row

FRESH = GpuResults(device={"name": "NVIDIA H200", "driver": "580.2"}, sources="abc", machine={"packages": {"torch": "2.11"}})
FIRST, SECOND, THIRD = (Row("digits", "onnx", batch) for batch in (1, 2, 4))


def _measured(row: Row, *, quick: bool = False) -> dict[str, Any]:
    return {"name": row.name, "met": True, "quick": quick}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deeper" / "gpu-nvidia-h200.json"


def test_a_further_call_continues_the_file_and_notes_its_own_driver_and_machine(path: Path) -> None:
    before = replace(
        FRESH,
        device={"name": "NVIDIA H200", "driver": "580.1"},
        rows=[_measured(FIRST)],
        failed={SECOND.name: "broken"},
        tests={"exit_code": 0, "passed": 1},
    )
    before.write(path)
    again = resume(path, FRESH)
    assert (again.rows, again.failed, again.tests) == (before.rows, before.failed, before.tests)
    assert again.device == FRESH.device
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "change",
    [{"device": {"name": "NVIDIA L4"}}, {"sources": "def"}, {"machine": {"packages": {"torch": "2.13"}}}],
    ids=["device", "sources", "torch"],
)
def test_figures_of_another_device_tree_or_torch_go_into_another_file(path: Path, change: dict[str, Any]) -> None:
    replace(FRESH, rows=[_measured(FIRST)], **change).write(path)
    kept = path.read_bytes()
    assert resume(path, FRESH) == FRESH
    assert not path.exists()
    assert set_aside_path(path).read_bytes() == kept


def test_a_file_of_another_form_is_renamed(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"rows": 3}')
    assert resume(path, FRESH) == FRESH
    assert set_aside_path(path).read_text() == '{"rows": 3}'


def test_without_a_file_it_begins_anew(path: Path) -> None:
    assert resume(path, FRESH) is FRESH


def test_rows_that_failed_come_last_and_those_measured_not_at_all() -> None:
    results = replace(FRESH, rows=[_measured(SECOND)], failed={FIRST.name: "broken"})
    assert results.due([FIRST, SECOND, THIRD], quick=False) == [THIRD, FIRST]


def test_rows_that_will_be_skipped_come_first_so_that_the_reason_stands_there_whatever_happens() -> None:
    lacking = Row("digits", "onnx", 8, device="cuda")
    assert lacking.lacking
    assert FRESH.due([FIRST, lacking], quick=False) == [lacking, FIRST]


def test_figures_of_a_quick_run_are_measured_again_by_a_whole_one() -> None:
    results = replace(FRESH, rows=[_measured(FIRST, quick=True), _measured(SECOND)])
    assert results.due([FIRST, SECOND], quick=True) == []
    assert results.due([FIRST, SECOND], quick=False) == [FIRST]


def test_a_row_of_which_nothing_is_known_is_not_run() -> None:
    results = replace(FRESH, rows=[_measured(FIRST)], skipped={SECOND.name: "not installed"})
    assert results.unknown([FIRST, SECOND, THIRD]) == [THIRD.name]


def test_parts_run_in_their_order_until_they_have_passed() -> None:
    assert FRESH.parts_due(["rows", "tests", "memory"]) == ["tests", "memory", "rows"]
    results = replace(FRESH, tests={"exit_code": 0, "passed": 5}, out_of_memory={"recovered": False})
    assert results.parts_due(["tests", "memory"]) == ["memory"]
    assert replace(results, out_of_memory={"recovered": True}).parts_due(["memory", "rows"]) == ["rows"]


def test_tests_that_were_all_skipped_have_not_passed() -> None:
    assert not replace(FRESH, tests={"exit_code": 0, "passed": 0}).tests_passed


def test_the_digest_is_of_what_runs_in_a_row(tmp_path: Path) -> None:
    for name in ("core/job.py", "broker/functions/claim.lua", "benchmarks/models/rows.py", "examples/vision/net.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
        before = sources_digest(tmp_path)
        (tmp_path / name).write_text("changed")
        assert sources_digest(tmp_path) != before, name
    before = sources_digest(tmp_path)
    for name in (
        "benchmarks/gpu/device_tests.py",
        "benchmarks/results/gpu-nvidia-h200.json",
        "examples/vision/build/kernel.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert sources_digest(tmp_path) == before
    assert sources_digest() != sources_digest(tmp_path)
