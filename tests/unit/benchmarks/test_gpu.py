from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.benchmarks import gpu
from penstock.benchmarks.gpu_memory import Wave, memory_figures
from penstock.benchmarks.gpu_rows import busy_share, gpu_rows, result_name
from penstock.benchmarks.model_figures import Block, record
from penstock.benchmarks.model_rows import config_text
from penstock.settings import Settings
from penstock.workers.devices.gpus import Gpu, Gpus, NvmlRefused, Unit
from penstock.workers.gpu_meter import GpuMeter

UNIT = Unit("GPU-1", "NVIDIA H200", 0, 1 << 37, 1 << 37)
TESTED: dict[str, Any] = {"exit_code": 0}


class _Driver:
    """NVML with one device that is busy three quarters of the time."""

    def ask(self, name: str, *arguments: Any) -> Any:
        answers = {
            "Init": None,
            "DeviceGetHandleByUUID": "handle",
            "DeviceGetMemoryInfo": SimpleNamespace(used=1, total=2),
            "DeviceGetUtilizationRates": SimpleNamespace(gpu=75),
        }
        if name not in answers:
            raise NvmlRefused(name)
        return answers[name]


def test_the_rows_cover_batch_by_precision_and_compilation_on_the_device() -> None:
    rows = gpu_rows(16, onnx=True)
    plain = {(row.batch, row.precision) for row in rows if row.runtime == "torch.export"}
    assert plain == {(batch, kind) for batch in (1, 8, 32, 64) for kind in ("fp32", "fp16", "bf16")}
    assert {row.precision for row in rows if row.runtime == "torch compile"} == {"fp32", "fp16", "bf16"}
    assert {row.device for row in rows} == {"cuda"}
    assert len({row.name for row in rows}) == len(rows)
    assert not [row for row in gpu_rows(16, onnx=False) if row.runtime == "onnx"]


def test_cores_are_left_for_the_other_processes() -> None:
    assert {row.threads for row in gpu_rows(16, onnx=False)} == {8}
    assert {row.threads for row in gpu_rows(6, onnx=False)} == {3}
    assert {row.threads for row in gpu_rows(2, onnx=False)} == {1}


def test_the_settings_of_the_rows_can_be_used(tmp_path: Path) -> None:
    rows = gpu_rows(16, onnx=True)
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
    assert busy_share([None]) == 0.0


def test_how_busy_the_device_was_stands_in_the_row() -> None:
    with gpu.device_watch("GPU-1", GpuMeter(_Driver()))() as beside:
        pass
    assert beside.keys() == {"device_busy_share"}
    blocks = [Block(9.0, 10.0, 12.0, {"child": 0.1}, 0.1, (0.1,), beside={"device_busy_share": share}) for share in (0.5, 0.7)]
    assert record(gpu_rows(16, onnx=False)[0], blocks)["device_busy_share"] == 0.6


def test_memory_is_recovered_only_if_it_ran_out_and_all_jobs_of_one_child_succeeded() -> None:
    good = (Wave(256, 256, 16), Wave(256, 256, 8))
    assert memory_figures(good, restarts=0)["recovered"]
    assert not memory_figures(good, restarts=1)["recovered"]
    assert not memory_figures((Wave(256, 256, 16), Wave(256, 256, 16)), restarts=0)["recovered"]
    assert not memory_figures((Wave(256, 255, 16), Wave(256, 256, 8)), restarts=0)["recovered"]
    assert not memory_figures((Wave(256, 256, 12), Wave(256, 256, 8)), restarts=0)["ran_out"]


def test_the_exit_status_tells_what_was_missed() -> None:
    good: dict[str, Any] = {"tests": TESTED, "out_of_memory": {"recovered": True}, "rows": [{"met": True}], "failed": {}}
    assert gpu.exit_code(good) == 0
    assert gpu.exit_code({**good, "rows": [{"met": False}]}) == 1
    assert gpu.exit_code({**good, "out_of_memory": {"recovered": False}}) == 1
    assert gpu.exit_code({**good, "tests": {"exit_code": 1}}) == 1
    assert gpu.exit_code({**good, "failed": {"row": "broken"}}) == 2


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
