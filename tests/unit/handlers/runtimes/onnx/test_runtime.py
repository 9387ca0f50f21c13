from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.device_errors import is_out_of_memory
from penstock.handlers.runtimes.contract import Port, open_runtime, refuse_foreign
from penstock.handlers.runtimes.onnx.providers import arena_options, by_builder, check_precision, kind_for
from penstock.handlers.runtimes.onnx.runtime import Binding, OnnxRuntime, open_model
from penstock.model_spec import RuntimeOptions

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tests.onnx_models import conv_net, perceptron, saved  # noqa: E402

built_for_gpus = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
needs_a_build_for_gpus = pytest.mark.skipif(
    not built_for_gpus, reason="this ONNX Runtime is built for the CPU: install the extra onnx-gpu in place of onnx"
)


def context(folder: Path, *, device: str = "cpu", threads: int = 1, **options: Any) -> Context:
    return Context("m", device=device, threads=threads, folder=folder, runtime=RuntimeOptions(**options))


def rows(count: int, width: int = 64) -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((count, width)).astype(np.float32)}


def opened(model: Any, tmp_path: Path, **options: Any) -> OnnxRuntime:
    return open_model(saved(model, tmp_path / "model.onnx"), context(tmp_path, **options))


def session_of(runtime: OnnxRuntime) -> Any:
    return runtime._session


def test_options_of_the_session_hold_in_the_session_that_runs(tmp_path: Path) -> None:
    table = {"enable_cpu_mem_arena": False, "graph_optimization_level": "extended", "session": {"disable_prepacking": "1"}}
    options = session_of(opened(conv_net(), tmp_path, threads=2, session=table)).get_session_options()
    assert (options.enable_cpu_mem_arena, options.intra_op_num_threads) == (False, 2)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options.get_session_config_entry("session.disable_prepacking") == "1"


def test_an_option_that_does_not_exist_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(HandlerLoadError, match="did you mean enable_mem_pattern"):
        open_model(tmp_path / "absent.onnx", context(tmp_path, session={"enable_memory_pattern": True}))


def test_batches_are_padded_to_buckets_and_cut_back(tmp_path: Path) -> None:
    plain, bucketed = opened(perceptron(), tmp_path), opened(perceptron(), tmp_path, batch_buckets=(4, 8))
    np.testing.assert_allclose(bucketed.run(rows(5))["y"], plain.run(rows(5))["y"], rtol=1e-5, atol=1e-6)
    assert (bucketed.padding_ratio, plain.padding_ratio) == (3 / 8, 0.0)


def squares() -> Any:
    """Return a model that needs n * n * 256 KiB for a batch of n, as a model with attention does."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1]) for name in ("x", "y")]
    constants = [numpy_helper.from_array(np.array([value]), name) for name, value in (("first", 0), ("each", 65_536))]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["n"]),
        helper.make_node("Mul", ["n", "n"], ["squared"]),
        helper.make_node("Mul", ["squared", "each"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["zero"], keepdims=1),
        helper.make_node("Add", ["x", "zero"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "squares", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_the_run_after_memory_ran_out_gives_the_arenas_memory_back(tmp_path: Path) -> None:
    """The arena kept what a batch had taken that then failed, so that smaller batches failed too."""
    runtime = opened(squares(), tmp_path)
    before = resident_mib()
    runtime.run(rows(40, 1))
    assert resident_mib() - before > 300, "the arena holds the batch's memory"
    with pytest.raises(Exception, match="allocate") as ran_out:
        runtime.run(rows(4_000, 1))
    assert is_out_of_memory(ran_out.value)
    runtime.run(rows(1, 1))
    assert resident_mib() - before < 100


def test_without_an_arena_nothing_is_to_shrink(tmp_path: Path) -> None:
    runtime = opened(squares(), tmp_path, session={"enable_cpu_mem_arena": False})
    with pytest.raises(Exception, match="bad_alloc"):
        runtime.run(rows(4_000, 1))
    assert runtime.run(rows(1, 1))["y"].shape == (1, 1)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / float(1 << 20)


FIXED, FREE = {"x": (None, 3, 224, 224)}, {"ids": (None, None)}


@pytest.mark.parametrize(
    ("inputs", "buckets", "strategy"),
    [
        (FIXED, (1, 8), {"arena_extend_strategy": "kSameAsRequested"}),
        ({"x": (4, 3)}, (), {"arena_extend_strategy": "kSameAsRequested"}),
        (FIXED, (), {}),
        (FREE, (1, 8), {}),
        (FIXED | FREE, (1, 8), {}),
    ],
)
def test_an_arena_grows_by_what_is_asked_for_where_batches_come_in_few_shapes(
    inputs: dict[str, tuple[int | None, ...]], buckets: tuple[int, ...], strategy: dict[str, str]
) -> None:
    """The default doubles: a model took 35 GiB for a batch that needs half of it."""
    assert arena_options(inputs, buckets) == strategy


@pytest.mark.parametrize(("version", "makes"), [("10.13.3", True), ("11.0.0", False), ("", True)])
def test_tensorrt_11_makes_no_half_precision_so_that_the_file_must_have_it(version: str, makes: bool) -> None:
    assert by_builder("tensorrt", "fp16", version) is makes
    assert not by_builder("tensorrt", "fp32", version)
    assert not by_builder("cuda", "fp16", version)


def test_a_batch_fixed_at_one_takes_no_buckets(tmp_path: Path) -> None:
    runtime = opened(perceptron(batch=1), tmp_path)
    assert not runtime.stacks
    assert runtime.run(rows(1))["y"].shape == (1, 64)
    with pytest.raises(HandlerLoadError, match="the model takes 1 rows at a time, not 4"):
        opened(perceptron(batch=1), tmp_path, batch_buckets=(4,))


def test_a_batch_fixed_at_four_is_filled_up_and_larger_ones_run_in_parts(tmp_path: Path) -> None:
    runtime, free = opened(perceptron(batch=4), tmp_path), opened(perceptron(), tmp_path)
    np.testing.assert_allclose(runtime.run(rows(6))["y"], free.run(rows(6))["y"], rtol=1e-5, atol=1e-6)
    assert runtime.padding_ratio == 2 / 8
    assert runtime.stacks


def test_axes_with_names_are_free(tmp_path: Path) -> None:
    runtime = opened(perceptron(batch="batch_size"), tmp_path)
    assert runtime.inputs == [Port("x", "float32", (64,))]
    assert runtime.stacks


def test_weights_outside_the_file_are_found_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "outside.onnx"
    onnx.save(perceptron(), path, save_as_external_data=True, location="outside.bin", size_threshold=0)
    wanted = opened(perceptron(), tmp_path).run(rows(2))["y"]
    np.testing.assert_allclose(open_model(path, context(tmp_path)).run(rows(2))["y"], wanted, rtol=1e-6)


def test_text_goes_in_and_comes_out_also_padded(tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in ("text", "same")]
    graph = helper.make_graph([helper.make_node("Identity", ["text"], ["same"])], "echo", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    runtime = opened(model, tmp_path, batch_buckets=(4,))
    assert runtime.inputs == [Port("text", "object", ())]
    assert runtime.run({"text": np.array(["a", "b"], object)})["same"].tolist() == ["a", "b"]


def rounding_error(model: Any, feed: dict[str, Any]) -> float:
    """Return six standard deviations of what 8 bits per weight and per activation change in the output of a perceptron.

    A rounded value is off by a uniform error of one step. The kernels of different processors add the products up in different
    ways, so that their results differ by a part of this.
    """
    activations, variance = feed["x"], 0.0
    for weights in map(numpy_helper.to_array, model.graph.initializer):
        steps = np.abs(weights).max() / 127, np.ptp(activations) / 255
        rounded = np.mean(activations**2) * steps[0] ** 2 + np.mean(weights**2) * steps[1] ** 2
        variance += len(weights) * rounded / 12
        activations = np.tanh(activations @ weights)
    return 6.0 * math.sqrt(variance)


def test_int8_is_close_to_the_original_smaller_and_made_once(tmp_path: Path) -> None:
    model, feed = perceptron(width=256), rows(8, 256)
    wanted = opened(model, tmp_path).run(feed)["y"]
    kept = {"quantize": "int8", "cache_dir": "kept"}
    got = opened(model, tmp_path, **kept).run(feed)["y"]
    assert 0 < np.abs(got - wanted).max() < rounding_error(model, feed)
    (copy,) = (tmp_path / "kept").glob("*.onnx")
    assert copy.stat().st_size < 0.4 * (tmp_path / "model.onnx").stat().st_size
    written_at = copy.stat().st_mtime_ns
    np.testing.assert_array_equal(opened(model, tmp_path, **kept).run(feed)["y"], got)
    assert copy.stat().st_mtime_ns == written_at


def test_a_linear_layer_as_torch_exports_it_is_quantised(tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name, width in (("x", 8), ("y", 64))]
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32), "w")
    graph = helper.make_graph([helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)], "linear", ports[:1], ports[1:], [weight])
    graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [64, 8]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    wanted = opened(model, tmp_path).run(rows(4, 8))["y"]
    got = opened(model, tmp_path, quantize="int8", cache_dir="kept").run(rows(4, 8))["y"]
    np.testing.assert_allclose(got, wanted, atol=0.2)


def test_a_changed_model_is_quantised_again(tmp_path: Path) -> None:
    for width in (64, 128):
        opened(perceptron(width=width), tmp_path, quantize="int8", cache_dir="kept")
    assert len(list((tmp_path / "kept").glob("*.onnx"))) == 2


def test_a_model_without_layers_for_int8_says_so(tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(HandlerLoadError, match="no layer that int8 would help"):
        opened(model, tmp_path, quantize="int8", cache_dir="kept")


def test_a_model_in_half_precision_runs_as_such_and_another_is_refused_with_the_way(tmp_path: Path) -> None:
    runtime = opened(perceptron(dtype=np.float16), tmp_path, precision="fp16")
    assert runtime.run({"x": rows(2)["x"].astype(np.float16)})["y"].dtype == np.float16
    with pytest.raises(HandlerLoadError, match=r"is a model in fp32, .*convert_float_to_float16"):
        opened(perceptron(), tmp_path, precision="fp16")


def test_the_conversion_that_the_message_names_works(tmp_path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    runtime = opened(convert_float_to_float16(perceptron(), keep_io_types=True), tmp_path, precision="fp16")
    wanted = opened(perceptron(), tmp_path).run(rows(2))["y"]
    np.testing.assert_allclose(runtime.run(rows(2))["y"], wanted, atol=0.01)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("cpu", {"precision": "tf32"}, "tf32.* is a mode of GPUs"),
        ("cuda", {"quantize": "int8"}, "int8.* works on the CPU"),
        ("cpu", {"quantize": "int8", "precision": "fp16"}, "int8.* works on the CPU"),
        ("cuda", {"precision": "bf16"}, "model in fp32, .*export it in bfloat16"),
    ],
)
def test_a_precision_that_the_provider_cannot_give_is_refused(kind: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        check_precision(perceptron().SerializeToString(), kind, RuntimeOptions(**options))


@pytest.mark.parametrize(("kind", "precision"), [("cuda", "tf32"), ("tensorrt", "fp16"), ("tensorrt", "bf16"), ("cpu", "fp32")])
def test_a_precision_that_the_provider_makes_itself_is_taken(kind: str, precision: str) -> None:
    check_precision(b"is not even read", kind, RuntimeOptions(precision=precision))


def test_the_provider_follows_from_the_device_or_is_named() -> None:
    assert kind_for("cpu", "auto") == ("cpu", 0)
    assert kind_for("cuda:1", "auto") == ("cuda", 1)
    assert kind_for("cuda", "tensorrt") == ("tensorrt", 0)


@pytest.mark.parametrize(("device", "provider"), [("cpu", "cuda"), ("cpu", "tensorrt"), ("cuda", "cpu"), ("cuda:x", "auto")])
def test_a_provider_and_a_device_that_disagree_are_refused(device: str, provider: str) -> None:
    with pytest.raises(HandlerLoadError, match="device"):
        kind_for(device, provider)


def test_options_of_a_provider_that_is_not_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HandlerLoadError, match=r"session\.cuda has options for a provider that is not used"):
        opened(perceptron(), tmp_path, session={"cuda": {"gpu_mem_limit": 1}})


def test_options_of_other_runtimes_are_refused_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(HandlerLoadError, match="compile = 'default' is an option of the runtime torch, not of onnx"):
        opened(perceptron(), tmp_path, compile="default")
    with pytest.raises(HandlerLoadError, match="quantize = 'int8' is an option of the runtime onnx"):
        refuse_foreign("tensorrt", RuntimeOptions(quantize="int8"))


@pytest.mark.skipif(built_for_gpus, reason="this build of ONNX Runtime knows GPUs")
def test_a_gpu_asked_of_a_build_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandlerLoadError, match=r"CUDAExecutionProvider on device 'cuda' .* would use CPU.*pip uninstall"):
        opened(perceptron(), tmp_path, device="cuda")


def test_bound_to_memory_the_outputs_are_the_same_and_inputs_are_not_mixed_up(tmp_path: Path) -> None:
    """The code path for GPUs, bound to CPU memory: everything runs except the copies to the device."""
    plain = opened(perceptron(), tmp_path)
    session = session_of(plain)
    bound = OnnxRuntime(session, buckets=(4,), binding=Binding(onnxruntime, session, "cpu", 0))
    for count in (1, 3, 1, 6, 3):
        feed = rows(count)
        np.testing.assert_allclose(bound.run(feed)["y"], plain.run(feed)["y"], rtol=1e-5, atol=1e-6)
    first = bound.run(rows(2))["y"]
    before = first.copy()
    bound.run({"x": np.ones((2, 64), np.float32)})
    np.testing.assert_array_equal(first, before)


def test_buffers_for_shapes_seen_long_ago_make_room(tmp_path: Path) -> None:
    session = session_of(opened(perceptron(), tmp_path))
    binding = Binding(onnxruntime, session, "cpu", 0)
    for count in range(1, 50):
        binding.run(rows(count), ["y"])
    assert len(binding._held) == Binding._MOST


@pytest.mark.parametrize(
    ("module", "options", "words"),
    [
        ("onnxruntime", [], "pip install 'penstock-inference[onnx]'"),
        ("onnx", ["quantize='int8'"], "pip install 'penstock-inference[onnx-quantize]'"),
        ("tensorrt", ["runtime='tensorrt'"], "pip install 'penstock-inference[tensorrt]'"),
    ],
)
def test_an_absent_library_is_named_with_its_extra(tmp_path: Path, module: str, options: Sequence[str], words: str) -> None:
    path = saved(perceptron(), tmp_path / "model.onnx")
    code = f"""
import sys
from pathlib import Path
for name in ({module!r}, {module + "_rtx"!r}): sys.modules[name] = None
from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.contract import open_runtime
from penstock.model_spec import RuntimeOptions
try:
    open_runtime(Path({str(path)!r}), Context("m", device="cpu", runtime=RuntimeOptions({", ".join(options)})))
except HandlerLoadError as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True, timeout=60)
    assert words in told.stdout


def test_a_runtime_that_cannot_take_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandlerLoadError, match=r"runtime 'torch' cannot run a \.onnx file"):
        open_runtime(saved(perceptron(), tmp_path / "model.onnx"), context(tmp_path, runtime="torch"))


@pytest.mark.gpu
@needs_a_build_for_gpus
def test_on_a_gpu_the_cuda_provider_runs_the_model(tmp_path: Path) -> None:
    runtime = opened(conv_net(), tmp_path, device="cuda", batch_buckets=(4, 8))
    assert runtime.provider == "CUDAExecutionProvider"
    feed = {"x": np.random.default_rng(2).standard_normal((3, 3, 16, 16)).astype(np.float32)}
    wanted = opened(conv_net(), tmp_path).run(feed)["y"]
    for _ in range(3):
        np.testing.assert_allclose(runtime.run(feed)["y"], wanted, rtol=1e-3, atol=1e-4)
    assert runtime.padding_ratio == 1 / 4


@pytest.mark.gpu
@needs_a_build_for_gpus
def test_on_a_gpu_the_tensorrt_provider_keeps_its_engines(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt", reason="TensorRT is not installed: the extra tensorrt brings it")
    options = {"device": "cuda", "provider": "tensorrt", "precision": "fp16", "cache_dir": "kept"}
    assert opened(conv_net(), tmp_path, **options).provider == "TensorrtExecutionProvider"
    engines = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("*.engine")}
    assert engines
    began = time.monotonic()
    opened(conv_net(), tmp_path, **options)
    assert time.monotonic() - began < 30
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("*.engine")} == engines
