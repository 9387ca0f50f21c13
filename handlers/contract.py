"""The contract between penstock and model code: four stages, a context, and a place for an item that fails alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

from penstock.errors import HandlerContractError, PenstockError
from penstock.model_spec import BatchPolicy, RuntimeOptions

# A message reaches the caller and is stored with the job: long enough for a sentence, too short for a dumped tensor.
_MESSAGE_LIMIT = 1_000
# The code of an item whose model cannot explain itself.
NOT_EXPLAINABLE = "not_explainable"
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")
# From the texts of CUDA's sticky errors (those after which every later call of the process fails; CUDA Runtime API, "Data types
# used by CUDA Runtime", cudaError_t) and what cuDNN and cuBLAS make of them. Their INTERNAL_ERROR alone is none: it also says
# that memory ran out. A process that MPS has turned away or ended gets no further either, and it is no input's doing.
_BROKEN_DEVICE_TEXTS = (
    "uncorrectable ecc error",
    "eccuncorrectable",
    "uncorrectable nvlink error",
    "over nvlink or a hardware error",
    "gpu is lost",
    "device lost",
    "fallen off the bus",
    "no cuda-capable device",
    # In the words of older versions, and of CUDA 13.
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


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler is told once, before its first batch. `folder` holds the source file; `threads` cores are its own;
    `runtime` says how model files are to be run; no batch is larger than `max_batch_size`."""

    model: str
    version: str = "1"
    device: str = "cpu"
    threads: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    max_batch_size: int = BatchPolicy().max_batch_size


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """An item's place in a list, when that item failed: its job fails with `code` and `message`, its neighbours go on.

    A long message is cut. Raises `HandlerContractError` for a code that is not a snake_case word.
    """

    message: str
    code: str = "handler_error"
    retryable: bool = False

    def __post_init__(self) -> None:
        # Model code puts anything here, an exception say; what cannot be written as UTF-8 would end the child on its way out.
        text = str(self.message)[:_MESSAGE_LIMIT].encode("utf-8", "replace").decode()
        object.__setattr__(self, "message", text)
        if not _CODE.fullmatch(str(self.code)):
            raise HandlerContractError(f"a Failure's code is a snake_case word such as bad_image, not {self.code!r:.80}")


class Handler:
    """Base class of model code; only `inference` is required.

    After `initialize`, each stage takes a list and returns a list of the same length; a `Failure` in a place ends that item
    there. `preprocess` and `postprocess` run beside the `inference` of other batches, each in a thread of its own. The class
    attributes are defaults that a `penstock.toml` may override; they are read without calling `initialize`.
    """

    max_batch_size: ClassVar[int | None] = None
    max_wait_s: ClassVar[float | None] = None
    # Media types taken; None: derived from the type of the items.
    accepts: ClassVar[tuple[str, ...] | None] = None
    # One input as the first stage gets it. With it a worker runs and times every batch size before it says it is ready.
    sample: Any = None
    # Set these (in `initialize`, say) where annotations cannot tell.
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    # What really runs the model ("CPUExecutionProvider", ...); shown with the worker.
    provider: str = ""
    # Seconds of the first call of the smallest batch, if `initialize` has made it: the warm-up would time its second one.
    first_call_s: float = 0.0

    def initialize(self, context: Context, /) -> None:
        """Called once per process, before the first batch: load weights onto `context.device`."""

    def preprocess(self, inputs: list[Any], /) -> list[Any]:
        return inputs

    def inference(self, batch: list[Any], /) -> list[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no inference(self, batch) method")

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        return outputs

    def explain(self, batch: list[Any], /) -> list[Any]:
        """Why the model answers as it does, for `POST /explanations/...`: gets what `inference` gets, returns the answers."""
        raise NotImplementedError(f"{type(self).__name__} has no explain(self, batch) method")


def failure_of(error: Exception) -> Failure:
    """The verdict on a single item whose stage raised: class and message of the error, never its traceback."""
    if isinstance(error, PenstockError):
        return Failure(error.message, error.kind, error.retryable)
    text, name = _words(error), type(error).__name__
    return Failure(f"{name}: {text}" if text else name, "oom" if out_of_memory(error) else "handler_error")


def out_of_memory(error: Exception) -> bool:
    """Whether a smaller batch may pass where this one raised: Python's, torch's and ONNX Runtime's ways of saying it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return _native(error) and _says(error, _OUT_OF_MEMORY_TEXTS)


def fatal_device_error(error: Exception) -> bool:
    """Whether every later call on the device will fail in this process, so that only a new one helps."""
    told = _native(error) and not out_of_memory(error) and _says(error, _DEVICE_WORDS)
    return told and _says(error, (*_POISONED_CONTEXT_TEXTS, *_BROKEN_DEVICE_TEXTS))


def broken_device(error: Exception) -> bool:
    """Whether a fatal error is the device's own doing: no input can cause it."""
    return fatal_device_error(error) and _says(error, _BROKEN_DEVICE_TEXTS)


def _native(error: Exception) -> bool:
    # ONNX Runtime's exceptions derive from Exception directly, torch's and CuPy's from RuntimeError: only the text tells.
    return isinstance(error, RuntimeError) or type(error).__module__.startswith(("onnxruntime", "pycuda", "tensorrt"))


def _says(error: Exception, texts: tuple[str, ...]) -> bool:
    words = _words(error).lower()
    return any(text in words for text in texts)


def _words(error: Exception) -> str:
    """Its message; an exception of the user's may fail at telling even that."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001
        return f"(its message cannot be read: {type(second).__name__})"
