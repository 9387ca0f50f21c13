"""What a GPU provider of ONNX Runtime lacks, according to the real loader; tests that load a provider are marked `gpu`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.onnx.libraries import obstacle, preload, remedy
from penstock.handlers.runtimes.onnx.runtime import open_model
from tests.onnx_models import perceptron, saved

onnxruntime = pytest.importorskip("onnxruntime")
ABSENT = "cannot open shared object file: No such file or directory"


def library_in(folder: Path) -> ModuleType:
    """Create a module where a build of ONNX Runtime would be."""
    (folder / "capi").mkdir()
    library = ModuleType("onnxruntime")
    library.__file__ = str(folder / "__init__.py")
    return library


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this build of ONNX Runtime knows GPUs"
)
def test_a_session_for_a_gpu_finds_the_libraries_that_pip_put_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: with all packages installed, libcublasLt.so.13 was not found: it is on no search path, and nothing loaded it.
    asked: list[bool] = []
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: asked.append(True))
    preload.cache_clear()
    model = saved(perceptron(), tmp_path / "model.onnx")
    open_model(model, Context("m"))
    assert asked == []
    for _ in range(2):
        with pytest.raises(HandlerLoadError, match="was asked for"):
            open_model(model, Context("m", device="cuda"))
    assert asked == [True]
    preload.cache_clear()


def test_tensorrt_is_loaded_as_well_where_its_provider_is_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt.py").write_text("import sys\nsys.tensorrt_was_loaded = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    library = library_in(tmp_path)
    library.preload_dlls = lambda: None  # type: ignore[attr-defined]
    preload(library, "cuda")
    assert not hasattr(sys, "tensorrt_was_loaded")
    preload(library, "tensorrt")
    assert sys.__dict__.pop("tensorrt_was_loaded")


def test_a_build_without_the_provider_is_told_apart_from_missing_libraries(tmp_path: Path) -> None:
    told = obstacle(library_in(tmp_path), "tensorrt")
    assert "has no libonnxruntime_providers_tensorrt.so" in told
    assert "pip uninstall -y onnxruntime && pip install 'penstock-inference[onnx-tensorrt]'" in told


def test_what_keeps_a_provider_from_loading_is_told_in_the_loaders_words(tmp_path: Path) -> None:
    library = library_in(tmp_path)
    (tmp_path / "capi" / "libonnxruntime_providers_cuda.so").write_bytes(b"no library")
    told = obstacle(library, "cuda")
    assert "libonnxruntime_providers_cuda.so" in told
    assert told.endswith("; run: pip install 'penstock-inference[onnx-gpu]'")


def test_a_provider_that_can_be_loaded_has_no_obstacle(tmp_path: Path) -> None:
    loads = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_shared.so"
    if not loads.exists():
        pytest.skip("this build of ONNX Runtime is one library")
    library = library_in(tmp_path)
    shutil.copy(loads, tmp_path / "capi" / "libonnxruntime_providers_cuda.so")
    assert obstacle(library, "cuda") == ""


@pytest.mark.parametrize(
    ("missing", "kind", "words"),
    [
        ("libcublasLt.so.13", "cuda", "run: pip install 'penstock-inference[onnx-gpu]'"),
        ("libnvrtc.so.13", "cuda", "run: pip install 'penstock-inference[onnx-gpu]'"),
        ("libcuda.so.1", "cuda", "NVIDIA's driver, which pip does not bring"),
        ("libcuda.so.1", "tensorrt", "NVIDIA's driver, which pip does not bring"),
        ("libcudnn.so.9", "tensorrt", "run: pip install 'penstock-inference[onnx-tensorrt]'"),
    ],
)
def test_each_missing_library_has_what_brings_it(missing: str, kind: str, words: str) -> None:
    assert words in remedy(f"{missing}: {ABSENT}", kind)


def test_a_tensorrt_of_another_version_is_named_beside_the_one_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: the extras installed TensorRT 11, the provider is linked to 10, and the advice was to install the extras.
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tensorrt-11.4.0.106.dist-info").mkdir()
    (tmp_path / "tensorrt-11.4.0.106.dist-info" / "METADATA").write_text("Name: tensorrt\nVersion: 11.4.0.106\n")
    told = remedy(f"libnvinfer.so.10: {ABSENT}", "tensorrt")
    assert (
        told
        == "TensorRT 11.4.0.106 is installed, which is not that version; run: pip install 'penstock-inference[onnx-tensorrt]'"
    )
