from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.memory import Wave, memory_figures
from benchmarks.gpu.results import PARTS, GpuResults, resume
from benchmarks.gpu.rows import busy_share, gpu_rows, result_name
from benchmarks.models import __main__ as models
from benchmarks.models import rows as model_rows
from benchmarks.models.figures import RowTurn, record
from benchmarks.models.rows import Row, config_text
from penstock.settings.tables import Settings
from penstock.workers.devices.gpus import Gpu, Gpus, NvmlRefused, Unit
from penstock.workers.telemetry.gpu_meter import GpuMeter

UNIT = Unit("GPU-1", "NVIDIA H200", 0, 1 << 37, 1 << 37)
FIRST, SECOND = gpu_rows(16)[:2]


class _Driver:
    """NVML with devices that are busy three quarters of the time; `looked` is set once two of them have been read."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.looked = threading.Event()

    def ask(self, name: str, *arguments: Any) -> Any:
        if name == "DeviceGetHandleByUUID":
            self.asked.update(arguments)
        if name == "DeviceGetUtilizationRates" and len(self.asked) > 1:
            self.looked.set()
        answers = {
            "Init": None,
            "DeviceGetHandleByUUID": "handle",
            "DeviceGetMemoryInfo": SimpleNamespace(used=1, total=2),
            "DeviceGetUtilizationRates": SimpleNamespace(gpu=75, memory=20),
        }
        if name not in answers:
            raise NvmlRefused(name)
        return answers[name]


def test_the_rows_cover_batch_by_precision_and_compilation_on_the_device() -> None:
    rows = gpu_rows(16)
    plain = {(row.batch, row.precision) for row in rows if row.runtime == "torch.export"}
    assert plain == {(batch, kind) for batch in (1, 8, 32, 64) for kind in ("fp32", "fp16", "bf16")}
    assert {row.precision for row in rows if row.runtime == "torch compile"} == {"fp32", "fp16", "bf16"}
    assert {row.device for row in rows} == {"cuda"}
    assert len({row.name for row in rows}) == len(rows)


def test_a_lease_that_ends_early_has_seen_every_precision_compiled_and_not() -> None:
    seen = {(row.runtime, row.precision) for row in gpu_rows(16)[:6]}
    assert seen == {(runtime, kind) for runtime in ("torch.export", "torch compile") for kind in ("fp32", "bf16", "fp16")}


@pytest.mark.parametrize(("version", "lacks"), [("absent", True), ("1.27.0", False)])
def test_rows_on_onnx_runtime_name_the_extra_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, version: str, lacks: bool
) -> None:
    """Regression: without the GPU build of ONNX Runtime these rows were left out silently."""
    monkeypatch.setattr(model_rows, "version_of", lambda _: version)
    rows = [row for row in gpu_rows(16) if row.runtime == "onnx"]
    assert len(rows) == 5
    assert {"extra onnx-gpu" in row.lacking for row in rows} == {lacks}
    assert "onnx-gpu" not in Row("digits", "onnx", 8).lacking


def test_cores_are_left_for_the_other_processes() -> None:
    assert {row.threads for row in gpu_rows(16)} == {8}
    assert {row.threads for row in gpu_rows(6)} == {3}
    assert {row.threads for row in gpu_rows(2)} == {1}


def test_the_settings_of_the_rows_can_be_used(tmp_path: Path) -> None:
    rows = gpu_rows(16)
    config = tmp_path / "penstock.toml"
    config.write_text(config_text(rows, state_dir=tmp_path / "state", port=0))
    specs = Settings.load(config, env={}).specs()
    assert [spec.device for spec in specs] == ["cuda"] * len(rows)
    assert {spec.runtime.precision for spec in specs} == {"fp32", "fp16", "bf16"}


def test_the_file_is_named_by_the_device() -> None:
    assert result_name("NVIDIA GeForce RTX 4090") == "gpu-nvidia-geforce-rtx-4090.json"
    assert result_name("???") == "gpu-unnamed.json"


def test_readings_that_the_device_refused_do_not_count_as_idle() -> None:
    assert busy_share([1.0, None, 0.5]) == 0.75


def test_a_device_that_reports_nothing_has_no_share() -> None:
    """Regression: the share of such a device was 0.0, as if the device had been idle."""
    assert busy_share([None, None]) is None
    assert busy_share([]) is None
    blocks = [_block(None), _block(None)]
    assert record(gpu_rows(16)[0], blocks)["device_busy_share"] is None
    assert record(gpu_rows(16)[0], [*blocks, _block(0.5)])["device_busy_share"] == 0.5


def _block(share: float | None) -> RowTurn:
    return RowTurn(9.0, 10.0, 12.0, {"child": 0.1}, 0.1, (0.1,), beside={"device_busy_share": share})


def test_how_busy_the_device_was_stands_in_the_row() -> None:
    assert record(gpu_rows(16)[0], [_block(0.5), _block(0.7)])["device_busy_share"] == 0.6


def test_the_devices_that_are_watched_are_those_of_the_row() -> None:
    """Regression: the watcher read the driver's first device, even if the worker used another device."""
    driver = _Driver()
    with gpu.device_watch(GpuMeter(driver))(["GPU-7", "GPU-8"]) as beside:
        assert driver.looked.wait(10.0)
    assert driver.asked == {"GPU-7", "GPU-8"}
    assert beside == {"device_busy_share": 0.75}


def test_memory_is_recovered_only_if_it_ran_out_and_all_jobs_of_one_child_succeeded() -> None:
    good = (Wave(256, 256, 16), Wave(256, 256, 8))
    assert memory_figures(good, restarts=0)["recovered"]
    assert not memory_figures(good, restarts=1)["recovered"]
    assert not memory_figures((Wave(256, 256, 16), Wave(256, 256, 16)), restarts=0)["recovered"]
    assert not memory_figures((Wave(256, 255, 16), Wave(256, 256, 8)), restarts=0)["recovered"]
    assert not memory_figures((Wave(256, 256, 12), Wave(256, 256, 8)), restarts=0)["ran_out"]


def _results(**changes: Any) -> GpuResults:
    good = GpuResults(
        rows=[{"name": FIRST.name, "met": True, "quick": False}],
        tests={"exit_code": 0, "passed": 3},
        out_of_memory={"recovered": True},
    )
    return replace(good, **changes)


def test_the_exit_status_says_what_was_missed() -> None:
    def status(*parts: str, **changes: Any) -> int:
        return gpu.exit_code(_results(**changes), parts or PARTS, [FIRST])

    assert status() == 0
    assert status(rows=[{"name": FIRST.name, "met": False, "quick": False}]) == 1
    assert status(out_of_memory={"recovered": False}) == 1
    assert status(tests={"exit_code": 1, "passed": 2}) == 1
    assert status(failed={FIRST.name: "broken"}) == 2
    assert status(rows=[], not_run=[FIRST.name]) == 2


def test_the_exit_status_is_of_what_was_asked_for() -> None:
    assert gpu.exit_code(_results(failed={SECOND.name: "broken"}), PARTS, [FIRST]) == 0
    assert gpu.exit_code(_results(failed={FIRST.name: "broken"}), ["tests"], [FIRST]) == 0
    assert gpu.exit_code(_results(tests=None), ["rows", "memory"], [FIRST]) == 0


def _call(results: GpuResults, out: Path, *, left_s: float) -> gpu.GpuRun:
    return gpu.GpuRun(results, out, [FIRST, SECOND], PARTS, quick=False, ends_at=time.monotonic() + left_s, say=print)


def test_when_the_budget_is_spent_nothing_begins_and_the_file_says_what_was_not_run(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    _call(GpuResults(), out, left_s=-1.0).run(tmp_path, [FIRST, SECOND])
    written = msgspec.json.decode(out.read_bytes())
    assert (written["tests"], written["out_of_memory"], written["rows"]) == (None, None, [])
    assert written["not_run"] == [FIRST.name, SECOND.name]


def test_what_passed_before_is_not_done_again(tmp_path: Path) -> None:
    rows = [{"name": row.name, "met": True, "quick": False, "measured_at": "then"} for row in (FIRST, SECOND)]
    before = _results(rows=rows)
    _call(before, tmp_path / "gpu.json", left_s=1e9).run(tmp_path, [FIRST, SECOND])
    written = msgspec.json.decode((tmp_path / "gpu.json").read_bytes())
    assert [row["measured_at"] for row in written["rows"]] == ["then", "then"]
    assert (written["tests"], written["not_run"]) == ({"exit_code": 0, "passed": 3}, [])


def test_a_row_in_which_the_call_is_killed_has_failed_and_comes_last_in_the_next(tmp_path: Path) -> None:
    """A row that hangs would otherwise be the first of every call, and the rows after it would never be measured."""
    out, fresh = tmp_path / "gpu.json", GpuResults()
    assert _call(fresh, out, left_s=1e9)._may_begin(FIRST)
    again = resume(out, GpuResults())
    assert "killed" in again.failed[FIRST.name]
    assert again.not_run == [SECOND.name]
    assert [row.name for row in again.due([FIRST, SECOND], quick=False)] == [SECOND.name, FIRST.name]


def test_a_mistyped_row_is_refused_before_anything_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: a mistyped row ended in a traceback, after the tests had run."""
    for main in (gpu.main, models.main):
        with pytest.raises(SystemExit) as ended:
            main(["--only", "nosuch"])
        assert ended.value.code == 2
        assert "no row's name holds 'nosuch'; there are vision-" in capsys.readouterr().err


def test_whatever_is_started_sees_the_device_that_the_file_is_named_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Regression: a worker takes the GPU with the most free memory, but the file was named after the first GPU."""
    other = Unit("GPU-2", "NVIDIA L4", 1, 1 << 34, 1 << 34)
    monkeypatch.setattr(gpu, "read_gpus", lambda _: Gpus((Gpu(UNIT), Gpu(other)), "580.1"))
    monkeypatch.setattr(gpu, "why_not", lambda _: "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    monkeypatch.chdir(tmp_path)
    # Without a budget, the device is chosen and the file written, but nothing else begins.
    assert gpu.main(["--budget-s", "0"]) == 2
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-2"
    [out] = (tmp_path / "benchmarks" / "results").iterdir()
    written = msgspec.json.decode(out.read_bytes())
    assert (out.name, written["device"]["name"], written["device"]["driver"]) == ("gpu-nvidia-l4.json", "NVIDIA L4", "580.1")


def test_a_fresh_call_starts_anew_and_renames_the_file(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    before = gpu.results_to_extend(UNIT, Gpus(), out, fresh=False)
    before.tests = {"exit_code": 0, "passed": 1}
    before.write(out)
    assert gpu.results_to_extend(UNIT, Gpus(), out, fresh=False).tests == before.tests
    assert gpu.results_to_extend(UNIT, Gpus(), out, fresh=True).tests is None
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.older.json"]


def test_without_a_gpu_it_says_why_in_one_sentence_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "read_gpus", lambda _: Gpus(absent="NVML says: no library"))
    out = tmp_path / "gpu.json"
    assert gpu.main(["--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert told == "skipped: no usable GPU here (NVML says: no library); nothing was measured or written\n"
    assert not out.exists()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [("'torch 2.0 sees no GPU'", "torch 2.0 sees no GPU"), ("3", "asking torch ended with code 3"), ("0", "")],
)
def test_a_device_that_torch_does_not_see_is_not_usable(monkeypatch: pytest.MonkeyPatch, said: str, wanted: str) -> None:
    monkeypatch.setattr(gpu, "_TORCH_SEES", f"import sys; sys.exit({said})")
    assert gpu.why_not(Gpus((Gpu(UNIT),))) == wanted
