"""Copies, shapes and profiles of a run on a fake device in host memory; tests on a real device are marked `gpu`."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.errors import HandlerContractError, HandlerLoadError, InvalidInput
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.tensorrt.build import _set_precision, checked_options
from penstock.handlers.runtimes.tensorrt.cuda import Buffer
from penstock.handlers.runtimes.tensorrt.runtime import TensorRtRuntime, open_model
from penstock.model_spec import RuntimeOptions

pytest.importorskip("onnx")
from tests.onnx_models import conv_net, saved

WIDTH = 3


class HostDevice:
    """A device in host memory whose copies happen only when the stream is waited for, as a GPU may delay them."""

    stream = 7

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.pinned = 0
        self.late: list[Any] = []

    def allocate(self, size_bytes: int, /) -> int:
        block = (ctypes.c_uint8 * size_bytes)()
        self.memory[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free(self, address: int, /) -> None:
        del self.memory[address]

    def pin(self, size_bytes: int, /) -> Any:
        self.pinned += 1
        return np.zeros(size_bytes, np.uint8)

    def unpin(self, host: Any, /) -> None:
        self.pinned -= 1

    def to_device(self, address: int, host: Any, size_bytes: int, /) -> None:
        self.late.append(lambda: ctypes.memmove(address, host.ctypes.data, size_bytes))

    def to_host(self, host: Any, address: int, size_bytes: int, /) -> None:
        self.late.append(lambda: ctypes.memmove(host.ctypes.data, address, size_bytes))

    def synchronize(self) -> None:
        for work in self.late:
            work()
        self.late.clear()


class Engine:
    """`y` = 2 `x` with rows of three numbers, for the batch sizes of its profiles."""

    num_io_tensors = 2

    def __init__(self, device: HostDevice, profiles: list[tuple[int, int]], *, fixed: int = -1, output: int = 3) -> None:
        self.device, self.profiles, self.fixed, self.output = device, profiles, fixed, output
        self.num_optimization_profiles = len(profiles)
        self.ran: list[tuple[int, int]] = []

    def get_tensor_name(self, number: int) -> str:
        return "xy"[number]

    def get_tensor_mode(self, name: str) -> str:
        return "in" if name == "x" else "out"

    def get_tensor_dtype(self, name: str) -> type:
        return np.float32

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (self.fixed, 3)

    def get_tensor_profile_shape(self, name: str, number: int) -> Any:
        least, most = self.profiles[number]
        return ((least, 3), (most, 3), (most, 3))

    def is_shape_inference_io(self, name: str) -> bool:
        return False

    def create_execution_context(self) -> Any:
        return ExecutionContext(self)


class ExecutionContext:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.profile = engine, -1
        self.shape: tuple[int, ...] = ()
        self.addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile: int, stream: int) -> None:
        self.profile = profile

    def set_input_shape(self, name: str, shape: Any) -> bool:
        self.shape = shape
        return bool(shape[1] == WIDTH)

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (self.shape[0], self.engine.output)

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == self.engine.device.stream
        self.engine.ran.append((self.profile, self.shape[0]))
        size = self.shape[0] * 3
        self.engine.device.late.append(lambda: self._double(size))
        return True

    def _double(self, size: int) -> None:
        given, made = ((ctypes.c_float * size).from_address(self.addresses[name]) for name in "xy")
        np.ctypeslib.as_array(made)[:] = np.ctypeslib.as_array(given) * 2


TRT = SimpleNamespace(__version__="10.9", TensorIOMode=SimpleNamespace(INPUT="in"), nptype=lambda dtype: dtype)


def runtime(
    profiles: list[tuple[int, int]], *, buckets: tuple[int, ...] = (), **options: Any
) -> tuple[TensorRtRuntime, Engine]:
    device = HostDevice()
    engine = Engine(device, profiles, **options)
    return TensorRtRuntime(TRT, engine, device, buckets=buckets), engine


def rows(count: int) -> Any:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


def test_batches_of_every_size_come_back_doubled_and_earlier_results_stay() -> None:
    model, engine = runtime([(1, 8)])
    first = model.run({"x": rows(2)})["y"]
    for count in (8, 1, 5):
        np.testing.assert_array_equal(model.run({"x": rows(count) + 1})["y"], 2 * (rows(count) + 1))
    np.testing.assert_array_equal(first, 2 * rows(2))
    assert engine.ran == [(0, 2), (0, 8), (0, 1), (0, 5)]
    assert len(engine.device.memory) == engine.device.pinned == 2


def test_each_bucket_runs_in_its_own_profile_and_larger_batches_in_parts() -> None:
    model, engine = runtime([(1, 1), (4, 4), (5, 8)], buckets=(1, 4))
    for count in (1, 3, 4, 6):
        np.testing.assert_array_equal(model.run({"x": rows(count)})["y"], 2 * rows(count))
    assert engine.ran == [(0, 1), (1, 4), (1, 4), (1, 4), (1, 4)]
    assert model.stacks


def test_an_engine_of_fixed_batch_is_filled_up_and_larger_batches_run_in_parts() -> None:
    model, engine = runtime([], fixed=4)
    np.testing.assert_array_equal(model.run({"x": rows(6)})["y"], 2 * rows(6))
    assert engine.ran == [(0, 4), (0, 4)]
    assert model.padding_ratio == 2 / 8


def test_an_engine_fixed_at_one_takes_items_one_by_one() -> None:
    assert not runtime([], fixed=1)[0].stacks


def test_an_output_whose_size_depends_on_the_data_is_refused() -> None:
    model, _ = runtime([(1, 8)], output=-1)
    with pytest.raises(HandlerContractError, match=r"size of output y depends on the data \(\[2, -1\]\)"):
        model.run({"x": rows(2)})


def test_a_shape_outside_the_range_of_the_engine_is_the_callers_fault() -> None:
    model, _ = runtime([(1, 8)])
    with pytest.raises(InvalidInput, match=r"x has the shape \[4\], outside the range"):
        model.run({"x": np.zeros((2, 4), np.float32)})


def test_inputs_that_are_no_solid_block_arrive_whole() -> None:
    device = HostDevice()
    buffer = Buffer(device)
    array = np.arange(12, dtype=np.int64).reshape(3, 4).T
    buffer.send(array)
    device.synchronize()
    buffer.fetch(array.nbytes)
    device.synchronize()
    np.testing.assert_array_equal(buffer.read((4, 3), np.dtype(np.int64)), array)
    assert buffer.read((0, 3), np.dtype(np.int64)).shape == (0, 3)


def test_a_plan_needs_a_gpu_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    (tmp_path / "model.plan").write_bytes(b"x")
    with pytest.raises(HandlerLoadError, match="TensorRT runs on GPUs, not on the device 'cpu'"):
        open_model(tmp_path / "model.plan", Context("m", folder=tmp_path))


def test_options_of_the_builder_are_checked_by_name_and_range() -> None:
    options = checked_options({"workspace_bytes": 1 << 28, "builder_optimization_level": 2, "shapes": {}})
    assert options == {"workspace_bytes": 1 << 28, "builder_optimization_level": 2}
    with pytest.raises(HandlerLoadError, match=r"workspace is not known here .*; builder_optimization_level must be .* 0 to 5"):
        checked_options({"workspace": 1, "builder_optimization_level": 9})


class Flags(SimpleNamespace):
    """A builder configuration that records its flags."""

    def set_flag(self, flag: str) -> None:
        self.on.add(flag)

    def clear_flag(self, flag: str) -> None:
        self.on.discard(flag)


@pytest.mark.parametrize(("precision", "on"), [("fp16", {"half"}), ("bf16", {"brain"}), ("tf32", {"tf"}), ("fp32", set())])
def test_where_the_builder_has_flags_for_precision_they_are_set(precision: str, on: set[str]) -> None:
    """A fake of TensorRT 10 with its names, because TensorRT 10 cannot be installed without the libraries of a GPU."""
    ten = SimpleNamespace(__version__="10.9", BuilderFlag=SimpleNamespace(FP16="half", BF16="brain", TF32="tf"))
    flags = Flags(on={"tf"})
    _set_precision(ten, flags, b"", precision)
    assert flags.on == on


@pytest.mark.gpu
@pytest.mark.skipif(
    not any(map(find_spec, ("tensorrt", "tensorrt_rtx"))),
    reason="TensorRT is not installed: the extra tensorrt or tensorrt-rtx brings it",
)
def test_on_a_gpu_an_engine_computes_what_onnxruntime_does(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are not installed: the extra tensorrt brings them")
    onnxruntime = pytest.importorskip("onnxruntime")
    path = saved(conv_net(), tmp_path / "model.onnx")
    options = RuntimeOptions(runtime="tensorrt", batch_buckets=(1, 4), cache_dir="kept")
    context = Context("m", device="cuda", folder=tmp_path, runtime=options, max_batch_size=8)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for _ in range(2):  # built first, then read from the cache
        model = open_model(path, context)
        for count in (1, 3, 4, 7):
            feed = {"x": np.random.default_rng(count).standard_normal((count, 3, 16, 16)).astype(np.float32)}
            np.testing.assert_allclose(model.run(feed)["y"], session.run(["y"], feed)[0], rtol=1e-3, atol=1e-4)
    assert len(list((tmp_path / "kept").glob("*.plan"))) == 1
    (plan,) = (tmp_path / "kept").glob("*.plan")
    (tmp_path / "model.plan").write_bytes(plan.read_bytes()[:-32])
    assert open_model(tmp_path / "model.plan", Context("m", device="cuda", folder=tmp_path)).outputs == ["y"]
