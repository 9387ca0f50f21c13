from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import HandlerContractError, InvalidInput
from penstock.handlers.contract import Failure, broken_device, failure_of, fatal_device_error, out_of_memory


def test_a_failure_carries_class_and_message_of_the_error() -> None:
    assert failure_of(ValueError("no such row")) == Failure("ValueError: no such row", "handler_error")


def test_an_error_without_text_is_named_by_its_class() -> None:
    assert failure_of(KeyboardError()).message == "KeyboardError"


def test_errors_of_penstock_keep_their_own_code_and_words() -> None:
    assert failure_of(InvalidInput("too short")) == Failure("too short", "invalid_input")
    assert failure_of(HandlerContractError("2 for 3")).code == "handler_contract"


def test_a_dumped_tensor_does_not_become_the_message() -> None:
    assert len(failure_of(ValueError("x" * 100_000)).message) == 1_000


def test_a_message_that_cannot_be_written_does_not_take_the_child_down() -> None:
    # A lone surrogate in it ended the process while it sent the outcome: the job was given up as poison, without its message.
    failure = failure_of(ValueError("\ud800 in row 7"))
    assert failure.message == "ValueError: ? in row 7"
    assert Failure(ValueError("as it is")).message == "as it is"  # type: ignore[arg-type]


def test_an_error_that_cannot_tell_its_message_is_told_all_the_same() -> None:
    assert failure_of(Unspeakable()).message == "Unspeakable: (its message cannot be read: ZeroDivisionError)"


@pytest.mark.parametrize("code", ["", "Bad Image", "../x", "\n", "x" * 65, None, 7])
def test_a_code_that_clients_could_not_match_on_is_refused(code: Any) -> None:
    with pytest.raises(HandlerContractError, match="snake_case"):
        Failure("no image", code)


def native(words: str) -> Exception:
    """As ONNX Runtime raises it."""
    raised: type[Exception] = type(
        "RuntimeException", (Exception,), {"__module__": "onnxruntime.capi.onnxruntime_pybind11_state"}
    )
    return raised(words)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("std::bad_alloc"),
        type("OutOfMemoryError", (RuntimeError,), {})("tried to allocate"),
        type("RuntimeException", (Exception,), {"__module__": "onnxruntime.capi"})("Failed to allocate memory for buffer"),
        # torch on the CPU; it was an ordinary error, and the batch was halved without a cap for the next one.
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"),
        # A library that finds no memory for its own workspace says so by its own name.
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        native("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=h ; file=cublas.cc ; line=1 ; expr=..."),
        native("BFCArena::AllocateRawInternal(...) Available memory of 0 is smaller than requested bytes of 4096"),
        RuntimeError("Error Code 2: OutOfMemory (Requested size was 1073741824 bytes.)"),
    ],
)
def test_running_out_of_memory_is_recognised_in_all_its_forms(error: Exception) -> None:
    assert out_of_memory(error)
    assert failure_of(error).code == "oom"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape mismatch"),
        ValueError("out of memory, says the user"),
        ValueError("CUBLAS_STATUS_ALLOC_FAILED stood in the text to classify"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    ],
)
def test_other_errors_are_not_taken_for_a_lack_of_memory(error: Exception) -> None:
    assert not out_of_memory(error)


class KeyboardError(Exception):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        return str(1 / 0)


class AcceleratorError(RuntimeError):
    """As torch.AcceleratorError of 2.8 and later."""


# cudaGetErrorString of cudaErrorMpsConnectionFailed (805) to cudaErrorMpsClientTerminated (810), CUDA 13.
MPS = (
    "MPS client failed to connect to the MPS control daemon or the MPS server",
    "the remote procedural call between the MPS server and the MPS client failed",
    "MPS server is not ready to accept new MPS client requests",
    "the hardware resources required to create MPS client have been exhausted",
    "the hardware resources required to support device connections have been exhausted",
    "the MPS client has been terminated by the server",
)


@pytest.mark.parametrize(
    ("error", "fatal", "broken"),
    [
        (RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be ..."), True, False),
        (AcceleratorError("CUDA error: an illegal memory access was encountered"), True, False),
        (RuntimeError("CUDA error: unspecified launch failure"), True, False),
        (RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"), True, False),
        (RuntimeError("HIP error: an illegal memory access was encountered"), True, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True, False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), True, False),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True, True),
        (RuntimeError("cudaErrorECCUncorrectable"), True, True),
        (RuntimeError("CUDA error: no CUDA-capable device is detected"), True, True),
        (AcceleratorError("CUDA error: operation not supported on global/shared address space"), True, False),
        (AcceleratorError("CUDA error: tensor memory not completely freed"), True, False),
        (RuntimeError("CUDA: unspecified launch failure in prior launch (cudaErrorLaunchFailure)"), True, False),
        (native("CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=h ; expr=..."), True, False),
        # CUDA 13 says it so. Only an older wording was looked for, and every job failed with an error of its own.
        (RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"), True, True),
        (RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable"), True, True),
        (native("CUDA failure 46: CUDA-capable device(s) is/are busy or unavailable ; GPU=0 ; hostname=h"), True, True),
        (AcceleratorError("CUDA error: uncorrectable NVLink error detected during the execution"), True, True),
        (AcceleratorError("CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"), True, True),
        *((RuntimeError(f"CUDA error: {words}"), True, True) for words in MPS),
        (AcceleratorError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False, False),
        (ValueError(f"CUDA error: {MPS[0]}"), False, False),
        (RuntimeError("the printing device(s) is/are busy or unavailable"), False, False),
        (AcceleratorError("CUDA error: out of memory"), False, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), False, False),
        (RuntimeError("CUDA error: invalid argument"), False, False),
        # Not the device's word: a model may talk of anything.
        (ValueError("CUDA error: device-side assert triggered"), False, False),
        (RuntimeError("illegal instruction in the recipe"), False, False),
    ],
)
def test_errors_after_which_every_call_fails_are_known_by_their_words(error: Exception, fatal: bool, broken: bool) -> None:
    assert (fatal_device_error(error), broken_device(error)) == (fatal, broken)
