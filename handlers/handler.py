"""The contract between penstock and model code: four stages, a context, and a place for an item that fails alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

from penstock.errors import PenstockError

# A message reaches the caller and is stored with the job: long enough for a sentence, too short for a dumped tensor.
_MESSAGE_LIMIT = 1_000
_OUT_OF_MEMORY_TEXTS = ("out of memory", "failed to allocate memory", "bad allocation", "bad_alloc")


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler is told once, before its first batch. `folder` holds the source file; `threads` cores are its own."""

    model: str
    version: str = "1"
    device: str = "cpu"
    threads: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """An item's place in a list, when that item failed: its job fails with `code` and `message`, its neighbours go on."""

    message: str
    code: str = "handler_error"
    retryable: bool = False


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

    def initialize(self, context: Context, /) -> None:
        """Called once per process, before the first batch: load weights onto `context.device`."""

    def preprocess(self, inputs: list[Any], /) -> list[Any]:
        return inputs

    def inference(self, batch: list[Any], /) -> list[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no inference(self, batch) method")

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        return outputs


def failure_of(error: Exception) -> Failure:
    """The verdict on a single item whose stage raised: class and message of the error, never its traceback."""
    if isinstance(error, PenstockError):
        return Failure(error.message[:_MESSAGE_LIMIT], error.kind, error.retryable)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(text[:_MESSAGE_LIMIT], "oom" if out_of_memory(error) else "handler_error")


def out_of_memory(error: Exception) -> bool:
    """Whether a smaller batch may pass where this one raised: Python's, torch's and ONNX Runtime's ways of saying it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # ONNX Runtime's exceptions derive from Exception directly, torch's older ones from RuntimeError: only the text tells.
    module = type(error).__module__
    native = isinstance(error, RuntimeError) or module.startswith("onnxruntime")
    return native and any(text in str(error).lower() for text in _OUT_OF_MEMORY_TEXTS)
