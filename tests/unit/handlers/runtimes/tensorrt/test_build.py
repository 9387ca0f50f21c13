"""tensorrt-rtx builds real engines without a GPU: it parses ONNX, and these tests name the kind of GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.engine_cache import GpuTarget
from penstock.handlers.runtimes.tensorrt import runtime as tensorrt
from penstock.handlers.runtimes.tensorrt.build import Recipe, build, version_of
from penstock.handlers.runtimes.tensorrt.profiles import profiles
from penstock.model_spec import RuntimeOptions
from tests.onnx_models import conv_net, saved

trt = pytest.importorskip("tensorrt_rtx")

L4, ADA = GpuTarget("NVIDIA L4", "8.9", "13010"), (8, 9)
TWO = tuple(profiles({"x": (None, 3, 16, 16)}, [(1, 4, 4), (5, 16, 16)], {}))


def recipe(**changes: Any) -> Recipe:
    return Recipe(**{"profiles": TWO, "compute_capability": ADA, **changes})


def model(**options: Any) -> bytes:
    data: bytes = conv_net(**options).SerializeToString()
    return data


def engine(path: Path, tmp_path: Path, *, buckets: tuple[int, ...] = (1, 8), **options: Any) -> bytes:
    runtime = RuntimeOptions(batch_buckets=buckets, cache_dir=str(tmp_path / "kept"), **options)
    context = Context("m", device="cuda", folder=tmp_path, runtime=runtime)
    return tensorrt.engine_for(trt, path, context, L4, compute_capability=ADA)


def kept(tmp_path: Path) -> Mapping[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").glob("*.plan")}


def test_an_engine_with_two_profiles_is_built_and_carries_the_version_that_wrote_it() -> None:
    plan, _ = build(trt, model(), recipe())
    assert len(plan) > 10_000
    assert version_of(plan) == trt.__version__
    single, _ = build(trt, model(), recipe(profiles=TWO[:1]))
    assert len(single) < len(plan)


def test_a_model_of_fixed_batch_needs_no_range(tmp_path: Path) -> None:
    path = saved(conv_net(batch=4), tmp_path / "model.onnx")
    assert version_of(engine(path, tmp_path, buckets=())) == trt.__version__


def test_weights_outside_the_file_are_found_beside_it(tmp_path: Path) -> None:
    import onnx

    path = tmp_path / "outside.onnx"
    onnx.save(conv_net(), path, save_as_external_data=True, location="outside.bin", size_threshold=0)
    assert engine(path, tmp_path)


def test_an_operator_that_tensorrt_lacks_is_told_with_its_node() -> None:
    with pytest.raises(HandlerLoadError, match=r"node relu1 \(NoSuchOp\): .*Plugin not found.*runtime = \"onnx\""):
        build(trt, model(relu="NoSuchOp"), recipe())


def test_what_is_no_model_is_refused_with_the_parsers_words(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(HandlerLoadError, match=r"TensorRT cannot read broken\.onnx: .*parse"):
        build(trt, path, recipe())


def test_a_profile_that_is_missing_is_told_with_the_builders_words() -> None:
    with pytest.raises(HandlerLoadError, match=r"cannot build an engine from .*no optimization profile has been defined"):
        build(trt, model(), recipe(profiles=()))


def test_half_precision_is_a_matter_of_the_model_where_networks_are_strongly_typed() -> None:
    assert build(trt, model(dtype=np.float16), recipe(precision="fp16"))[0]
    with pytest.raises(HandlerLoadError, match=r"is a model in fp32, and TensorRT 1\..*convert_float_to_float16"):
        build(trt, model(), recipe(precision="fp16"))


@pytest.mark.parametrize(("precision", "switched"), [("fp32", False), ("tf32", True)])
def test_tf32_is_used_only_if_asked_for(monkeypatch: pytest.MonkeyPatch, precision: str, switched: bool) -> None:
    seen: list[bool] = []
    genuine = trt.Builder.build_serialized_network

    def watched(self: Any, network: Any, config: Any) -> Any:
        seen.append(config.get_flag(trt.BuilderFlag.TF32))
        return genuine(self, network, config)

    monkeypatch.setattr(trt.Builder, "build_serialized_network", watched)
    build(trt, model(), recipe(precision=precision))
    assert seen == [switched]


def test_options_of_the_builder_are_taken() -> None:
    assert build(trt, model(), recipe(options={"workspace_bytes": 1 << 28, "builder_optimization_level": 2}))[0]


def test_a_gpu_that_the_library_cannot_build_for_from_afar_is_told() -> None:
    with pytest.raises(HandlerLoadError, match="cannot build for SM90 without a GPU"):
        build(trt, model(), recipe(compute_capability=(9, 0)))


def test_the_second_time_the_engine_comes_from_the_cache(tmp_path: Path) -> None:
    path = saved(conv_net(), tmp_path / "model.onnx")
    plan = engine(path, tmp_path)
    before = kept(tmp_path)
    assert engine(path, tmp_path) == plan
    assert kept(tmp_path) == before
    assert len(before) == 1


def test_another_precision_or_range_is_another_engine(tmp_path: Path) -> None:
    path = saved(conv_net(), tmp_path / "model.onnx")
    engine(path, tmp_path)
    engine(path, tmp_path, precision="tf32")
    engine(path, tmp_path, buckets=(1, 16))
    engine(path, tmp_path, session={"builder_optimization_level": 1})
    assert len(kept(tmp_path)) == 4


def test_a_plan_that_cannot_be_loaded_is_told_with_both_versions() -> None:
    plan = bytearray(build(trt, model(), recipe())[0])
    plan[24:28] = bytes([10, 9, 0, 34])
    with pytest.raises(HandlerLoadError, match=rf"written by TensorRT 10\.9\.0\.34, and this is {trt.__version__}"):
        tensorrt.loaded(trt, bytes(plan), "model.plan")
    with pytest.raises(HandlerLoadError, match=r"cannot load model\.plan: this is TensorRT .*"):
        tensorrt.loaded(trt, b"not a plan at all, but long enough to look at", "model.plan")


def test_without_a_gpu_the_runtime_refuses_to_start(tmp_path: Path) -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    if not int(runtime.cudaGetDeviceCount()[0]):
        pytest.skip("there is a GPU")
    path = saved(conv_net(), tmp_path / "model.onnx")
    with pytest.raises(HandlerLoadError, match="there is no GPU to run on: CUDA driver"):
        tensorrt.open_model(path, Context("m", device="cuda", runtime=RuntimeOptions(runtime="tensorrt")))
    with pytest.raises(HandlerLoadError, match="TensorRT runs on GPUs, not on the device 'cpu'"):
        tensorrt.open_model(path, Context("m", runtime=RuntimeOptions(runtime="tensorrt")))


def test_all_that_is_used_of_cuda_is_there() -> None:
    """Nothing runs without a GPU, but this test finds names that do not exist in CUDA."""
    runtime = pytest.importorskip("cuda.bindings.runtime")
    used = (
        "cudaSetDevice cudaStreamCreateWithFlags cudaStreamNonBlocking cudaMalloc cudaFree cudaMallocHost cudaFreeHost "
        "cudaMemcpyAsync cudaStreamSynchronize cudaGetErrorString cudaGetDeviceCount cudaGetDeviceProperties "
        "cudaDriverGetVersion"
    )
    assert [name for name in used.split() if not hasattr(runtime, name)] == []
    assert {"cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost"} <= set(runtime.cudaMemcpyKind.__members__)
    for kind, names in {
        trt.IExecutionContext: "set_input_shape set_tensor_address get_tensor_shape execute_async_v3",
        trt.ICudaEngine: "get_tensor_name get_tensor_mode get_tensor_dtype get_tensor_profile_shape is_shape_inference_io",
    }.items():
        assert [name for name in names.split() if not hasattr(kind, name)] == []
