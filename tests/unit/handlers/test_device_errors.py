from __future__ import annotations

import pytest

from penstock.handlers.contract import failure_of
from penstock.handlers.device_errors import is_broken_device, is_fatal_device_error, is_out_of_memory


def native(words: str) -> Exception:
    """Return an error as ONNX Runtime raises it."""
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
        # torch on the CPU. Regression: this was an ordinary error, so the batch was halved, but the next batch was not capped.
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"),
        # A library without memory for its own workspace raises an error with its own name.
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
    assert is_out_of_memory(error)
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
    assert not is_out_of_memory(error)


class AcceleratorError(RuntimeError):
    """An error like torch.AcceleratorError of torch 2.8 and later."""


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
        # This is the wording of CUDA 13. Regression: only an older wording was known, and every job failed with its own error.
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
        # This error is not the device's: a model may raise any text.
        (ValueError("CUDA error: device-side assert triggered"), False, False),
        (RuntimeError("illegal instruction in the recipe"), False, False),
    ],
)
def test_errors_after_which_every_call_fails_are_known_by_their_words(error: Exception, fatal: bool, broken: bool) -> None:
    assert (is_fatal_device_error(error), is_broken_device(error)) == (fatal, broken)
