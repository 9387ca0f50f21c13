"""Each profiler records a real model, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.workers.child.batch_profile import FACTS, BatchProfile, PythonRecorder, TorchRecorder, choose_recorder

DIGITS = Path(__file__).parents[4] / "examples" / "digits"
IMAGES = [path.read_bytes() for path in sorted((DIGITS / "images").glob("*.png"))[:3]]


def profiled(loaded: Loaded, folder: Path, work: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    profile = BatchProfile(loaded, folder)
    profile.start()
    result = profile.run(work)
    profile.save()
    return result, json.loads((folder / FACTS).read_text())


@pytest.fixture
def digits() -> Loaded:
    pytest.importorskip("onnxruntime")
    return load(str(DIGITS / "handler.py"), "digits")


def test_onnx_runtime_records_the_batch_on_a_session_beside_the_one_that_serves(digits: Loaded, tmp_path: Path) -> None:
    assert digits.preprocess is not None
    batch = digits.preprocess(IMAGES)
    runtime: Any = digits.handler.runtime  # type: ignore[attr-defined]
    plain, serving = digits.inference(batch), runtime._session
    result, facts = profiled(digits, tmp_path, lambda: digits.inference(batch))
    assert [output["probabilities"].tolist() for output in result] == [output["probabilities"].tolist() for output in plain]
    assert runtime._session is serving
    assert facts["kind"] == "onnxruntime"
    events = json.loads((tmp_path / "trace.json").read_text())
    assert [event["name"] for event in events].count("model_run") == 1
    assert "CPUExecutionProvider" in (tmp_path / "operators.txt").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {FACTS, "trace.json", "operators.txt"}


def test_a_session_that_cannot_be_opened_again_costs_a_note_and_not_the_batch(digits: Loaded, tmp_path: Path) -> None:
    def refused(_: str) -> Any:
        raise MemoryError("no room for a second one")

    digits.handler.runtime._open_twin = refused  # type: ignore[attr-defined]
    assert digits.preprocess is not None
    batch = digits.preprocess(IMAGES)
    result, facts = profiled(digits, tmp_path, lambda: digits.inference(batch))
    assert len(result) == 3
    assert facts["note"] == "MemoryError: no room for a second one"


def test_a_runtime_that_cannot_say_who_records_it_costs_a_note_and_not_the_batch(digits: Loaded, tmp_path: Path) -> None:
    """Regression: the runtime was asked outside of the guarded code, so an error ended the child and its batch."""

    def refused(_: Path) -> Any:
        raise OSError("no folder")

    digits.handler.runtime.profile = refused  # type: ignore[attr-defined]
    assert digits.preprocess is not None
    batch = digits.preprocess(IMAGES)
    result, facts = profiled(digits, tmp_path, lambda: digits.inference(batch))
    assert len(result) == 3
    assert facts["note"] == "OSError: no folder"


def test_only_runtimes_of_ours_are_asked_for_a_recorder(tmp_path: Path) -> None:
    loaded = load(str(DIGITS.parent / "square.py"), "square")
    loaded.handler.runtime = SimpleNamespace(profile="fast")  # type: ignore[attr-defined]
    assert choose_recorder(loaded, tmp_path)[0] in ("python", "torch")


def test_what_the_model_raises_is_raised_and_the_profiler_stopped(digits: Loaded, tmp_path: Path) -> None:
    serving = digits.handler.runtime._session  # type: ignore[attr-defined]
    profile = BatchProfile(digits, tmp_path)
    profile.start()
    empty: dict[str, int] = {}
    with pytest.raises(KeyError, match="bad"):
        profile.run(lambda: empty["bad"])
    profile.save()
    assert digits.handler.runtime._session is serving  # type: ignore[attr-defined]


def test_torch_writes_a_trace_and_a_table_of_operators(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    recorder = TorchRecorder(tmp_path, cuda=False)
    recorder.start()
    torch.ones(8, 8) @ torch.ones(8, 8)
    recorder.stop()
    assert recorder.save() is None
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert any(event.get("name") == "aten::mm" for event in trace["traceEvents"])
    assert "aten::mm" in (tmp_path / "operators.txt").read_text()


def test_plain_python_is_recorded_by_function(tmp_path: Path) -> None:
    recorder = PythonRecorder(tmp_path)
    recorder.start()
    json.loads("[1, 2]")
    recorder.stop()
    recorder.save()
    assert "loads" in (tmp_path / "profile.txt").read_text()


def test_the_runtimes_own_recorder_comes_first(digits: Loaded, tmp_path: Path) -> None:
    assert choose_recorder(digits, tmp_path)[0] == "onnxruntime"
