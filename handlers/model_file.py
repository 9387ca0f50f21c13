"""Finds faults that keep a model file from loading, as far as the file and its settings show them, before a process starts.

No library that runs models is imported. The worker's child finds the faults that only such a library or the device shows.
"""

# D46: this runs in `config --check`, `doctor`, `up` and `worker`.

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.contract import chosen_runtime, refuse_foreign
from penstock.handlers.runtimes.onnx.providers import checked_kind
from penstock.handlers.runtimes.onnx.session import session_config
from penstock.handlers.runtimes.tensorrt.build import checked_options
from penstock.handlers.runtimes.tensorrt.runtime import gpu_index
from penstock.handlers.runtimes.torch.archive import FileKind, file_kind
from penstock.handlers.runtimes.torch.checks import check_options
from penstock.handlers.runtimes.torch.declared import declared_inputs
from penstock.handlers.runtimes.torch.files import located_class
from penstock.handlers.tasks.file_handler import check_option_names
from penstock.handlers.tasks.labels import read_labels
from penstock.handlers.tasks.options import read_options, task_class
from penstock.handlers.tasks.vocabulary import require_tokenizer
from penstock.model_spec import bucket_fault


def file_faults(path: Path, context: Context, *, task: str = "") -> list[str]:
    """One sentence per fault; empty if there is none. The file must exist."""
    faults = [bucket_fault(context.runtime.batch_buckets, context.max_batch_size)]
    faults.append(_fault_of(lambda: check_option_names(path, context, task=task)))
    # The check of the task would report a wrong name of an option a second time.
    if task and not faults[-1]:
        faults.append(_fault_of(lambda: _check_task(context, task)))
    faults.append(_fault_of(lambda: _CHECKS[chosen_runtime(path, context)](path, context)))
    return list(dict.fromkeys(filter(None, faults)))


def _fault_of(check: Callable[[], None]) -> str:
    try:
        check()
    except HandlerLoadError as error:
        return error.message
    except OSError as error:
        return f"{error.filename or 'its file'} cannot be read: {error.strerror or error}"
    return ""


def _check_task(context: Context, task: str) -> None:
    """Check the values of the task's options, and read the files that they name."""
    kind: Any = task_class(task)
    options = read_options(kind.defaults, context.options, task=task)
    labels, tokenizer = getattr(options, "labels", None), getattr(options, "tokenizer", None)
    if labels is not None:
        read_labels(context.folder, labels)
    if tokenizer is not None:
        require_tokenizer(context.folder / tokenizer)


def _check_onnx(path: Path, context: Context) -> None:
    refuse_foreign("onnx", context.runtime)
    checked_kind(path, context, session_config(context.runtime.session, threads=context.threads, spin={}))


def _check_tensorrt(path: Path, context: Context) -> None:
    refuse_foreign("tensorrt", context.runtime)
    gpu_index(context.device)
    checked_options(context.runtime.session)


def _check_torch(path: Path, context: Context) -> None:
    kind = file_kind(path)
    check_options(kind, context.runtime, context.device.partition(":")[0])
    if kind is not FileKind.EXPORTED:
        declared_inputs(context.options, file=path.name, kind=kind)
    if kind is FileKind.WEIGHTS:
        located_class(path, context)


_CHECKS: dict[str, Callable[[Path, Context], None]] = {
    "onnx": _check_onnx,
    "tensorrt": _check_tensorrt,
    "torch": _check_torch,
}
