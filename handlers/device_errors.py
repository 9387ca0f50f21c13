"""What an exception says of the device it was raised on: memory ran out, this process is lost, or the device is broken. Pure.

The text decides, because CUDA's libraries and the runtimes above them raise the same class for most of their errors.
"""

from __future__ import annotations

# From the texts of CUDA's sticky errors, after which every later call of the process fails (CUDA Runtime API, "Data types used
# by CUDA Runtime", cudaError_t), and what cuDNN and cuBLAS make of them. INTERNAL_ERROR of those two is not listed, because it
# also stands for memory that ran out. A process that MPS has turned away or ended is listed: no input can cause that.
_BROKEN_DEVICE_TEXTS = (
    "uncorrectable ecc error",
    "eccuncorrectable",
    "uncorrectable nvlink error",
    "over nvlink or a hardware error",
    "gpu is lost",
    "device lost",
    "fallen off the bus",
    "no cuda-capable device",
    # The first is the text of older versions, the second that of CUDA 13.
    "devices are busy or unavailable",
    "device(s) is/are busy or unavailable",
    "mps client failed to connect",
    "between the mps server and the mps client failed",
    "mps server is not ready",
    "required to create mps client have been exhausted",
    "required to support device connections have been exhausted",
    "mps client has been terminated",
)
_POISONED_CONTEXT_TEXTS = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction",
    "illegaladdress",
    "misaligned address",
    "unspecified launch failure",
    "launchfailure",
    "launch timed out",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "tensor memory not completely freed",
    "hardware stack error",
    "context is destroyed",
    "cudnn_status_execution_failed",
    "cublas_status_execution_failed",
)
_DEVICE_WORDS = ("cuda", "cudnn", "cublas", "hip error", "nvml")
_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "outofmemory",
    "can't allocate memory",
    "failed to allocate memory",
    # ONNX Runtime at the limit of gpu_mem_limit.
    "smaller than requested bytes",
    "bad allocation",
    "bad_alloc",
    # cuBLAS, cuDNN up to 8, cuSPARSE; cuFFT; cuDNN 9.
    "_status_alloc_failed",
    "cufft_alloc_failed",
    "device_allocation_failed",
    "host_allocation_failed",
)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a smaller batch may pass where this one raised. Knows the errors of Python, torch and ONNX Runtime."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return _is_native(error) and _contains(error, _OUT_OF_MEMORY_TEXTS)


# D26: such an error is a crash of the process and no failure of items.
def is_fatal_device_error(error: Exception) -> bool:
    """Whether every later call on the device will fail in this process, so that only a new process helps."""
    of_device = _is_native(error) and not is_out_of_memory(error) and _contains(error, _DEVICE_WORDS)
    return of_device and _contains(error, (*_POISONED_CONTEXT_TEXTS, *_BROKEN_DEVICE_TEXTS))


def is_broken_device(error: Exception) -> bool:
    """Whether a fatal error is the device's own fault: no input can cause it."""
    return is_fatal_device_error(error) and _contains(error, _BROKEN_DEVICE_TEXTS)


def error_text(error: Exception) -> str:
    """The message of an exception. One that a user's code defines may fail to give even that."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001
        return f"(its message cannot be read: {type(second).__name__})"


def _is_native(error: Exception) -> bool:
    # ONNX Runtime's exceptions derive from Exception directly, torch's and CuPy's from RuntimeError.
    return isinstance(error, RuntimeError) or type(error).__module__.startswith(("onnxruntime", "pycuda", "tensorrt"))


def _contains(error: Exception, texts: tuple[str, ...]) -> bool:
    text = error_text(error).lower()
    return any(part in text for part in texts)
