from __future__ import annotations

import pytest

from penstock.model_spec import Limits, ModelSpec
from penstock.workers.devices.pins import Pin
from penstock.workers.slot.child.environment import child_environment
from penstock.workers.slot.child.process import _load_order, exit_in_words


def test_a_child_sees_nothing_but_the_allow_list_and_its_pins() -> None:
    seen = child_environment(
        {"PATH": "/bin", "LC_ALL": "C", "PENSTOCK_REDIS_URL": "redis://:secret@h", "REDIS_URL": "r", "AWS_SECRET": "s"},
        Pin((0,), 3),
    )
    assert (seen["PATH"], seen["LC_ALL"], seen["OMP_NUM_THREADS"]) == ("/bin", "C", "3")
    assert not {"PENSTOCK_REDIS_URL", "REDIS_URL", "AWS_SECRET"} & set(seen)


@pytest.mark.parametrize(
    "name",
    [
        *("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"),
        *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_HOME", "TORCH_LOGS", "CUBLAS_WORKSPACE_CONFIG"),
        *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_PTXAS_PATH", "NVIDIA_TF32_OVERRIDE"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE"),
    ],
)
def test_what_steers_compilers_torch_and_caches_reaches_the_child(name: str) -> None:
    # Regression: children got neither CXX and CC nor the variables of allocators, which silently ran with their defaults.
    assert child_environment({name: "as set"}, Pin((0,), 1))[name] == "as set"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "NVIDIA_API_KEY", "TORCHINDUCTOR_REDIS_URL", "TRITON_REDIS_HOST"],
)
def test_a_secret_does_not_pass_by_way_of_an_allowed_prefix(name: str) -> None:
    # Regression: NVIDIA_API_KEY passed like every other variable with the prefix NVIDIA_.
    assert name not in child_environment({name: "secret"}, Pin((0,), 1))


def test_a_child_sees_its_own_gpu_alone_and_the_mps_daemon_of_its_worker() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}
    seen = child_environment(environment, Pin((0,), 1, device="cuda:1", uuid="GPU-b"))
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == ("GPU-b", "PCI_BUS_ID")
    assert seen["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps"
    assert child_environment(environment, Pin((0,), 1))["CUDA_VISIBLE_DEVICES"] == ""


def test_a_child_sends_no_telemetry_to_makers_of_libraries() -> None:
    # Regression: for every model, ONNX Runtime 1.31 looked up mobile.events.data.microsoft.com and left `.ses` in a folder.
    assert child_environment({"ORT_DISABLE_TELEMETRY": "0"}, Pin((0,), 1))["ORT_DISABLE_TELEMETRY"] == "1"


def test_an_exit_is_described_in_words() -> None:
    assert exit_in_words(-11) == "ended by SIGSEGV"
    assert exit_in_words(3) == "exited with code 3"
    assert "out of memory" in exit_in_words(-9)
    assert "out of memory" in exit_in_words(137)


@pytest.mark.parametrize(("max_run_s", "seconds"), [(75.0, 10.0), (4.0, 2.0)])
def test_the_files_at_urls_of_an_input_take_at_most_half_of_the_time_of_a_run(max_run_s: float, seconds: float) -> None:
    spec = ModelSpec("m", "m.py", limits=Limits(max_run_s=max_run_s), input_urls=("*",), request_headers=("a",), query=("b",))
    order = _load_order(spec, Pin((0,), 1), 8)
    assert (order.input_urls, order.input_urls_s, order.told) == (("*",), seconds, ("a", "b"))
