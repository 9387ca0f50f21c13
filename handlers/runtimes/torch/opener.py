"""Opens a model file with its options as a runtime, and makes the first call."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from penstock.errors import HandlerLoadError, PenstockError
from penstock.handlers.contract import Context
from penstock.handlers.device_errors import is_out_of_memory
from penstock.handlers.runtimes.batches import BatchSizes
from penstock.handlers.runtimes.torch.archive import FileKind, file_kind
from penstock.handlers.runtimes.torch.checks import check_compiler, check_options
from penstock.handlers.runtimes.torch.exported import read_exported
from penstock.handlers.runtimes.torch.files import read_package, read_script, read_weights, telling_memory, without_traceback
from penstock.handlers.runtimes.torch.graphs import GraphedCall
from penstock.handlers.runtimes.torch.library import checked_device, provider_words, set_up, torch_library
from penstock.handlers.runtimes.torch.precision import HALVES, cast, quantized
from penstock.handlers.runtimes.torch.program import Program
from penstock.handlers.runtimes.torch.runtime import DifferentiableRuntime, ProgramCall, TorchRuntime
from penstock.handlers.runtimes.torch.transfer import CudaTransfer, HostTransfer
from penstock.model_spec import RuntimeOptions

Call = Callable[[Sequence[Any]], Any]


def open_model(model: Path | bytes, context: Context) -> TorchRuntime:
    """Open the model and run it once if its shapes are known. Raises `HandlerLoadError` for a fault that every batch would
    meet.
    """
    if isinstance(model, bytes):
        raise HandlerLoadError("a torch model is opened from a file, not from memory; write it to one")
    kind, options = file_kind(model), context.runtime
    check_options(kind, options, context.device.partition(":")[0])
    torch = torch_library()
    device = checked_device(torch, context.device)
    set_up(torch, device, threads=context.threads, precision=options.precision)
    program = _read(kind, model, device, context=context)
    adapted = replace(program, module=_adapted(torch, program, options))
    program_call = _program_call(torch, adapted, context)
    real = options.quantize == "off" and all(dtype.is_floating_point for dtype in program_call.dtypes)
    runtime = (DifferentiableRuntime if real else TorchRuntime)(
        torch,
        _call(torch, adapted, program_call, context=context),
        program_call,
        transfer=CudaTransfer(torch, device) if device.type == "cuda" else HostTransfer(torch),
        provider=provider_words(torch, device, extras=_extras(options)),
    )
    runtime.first_call_s = _first_call(runtime, adapted, program_call, file=model.name, options=options)
    return runtime


def _first_call(
    runtime: TorchRuntime, program: Program, program_call: ProgramCall, *, file: str, options: RuntimeOptions
) -> float:
    """Seconds of the first call that fitted into memory; 0.0 if no input for it is known."""
    *larger, last = first_sizes(program_call.sizes, graphs=options.cuda_graphs)
    for rows in larger:
        with suppress(_DoesNotFit):
            return _run_once(runtime, _example_feed(program, program_call, rows), file=file, options=options)
    return _run_once(runtime, _example_feed(program, program_call, last), file=file, options=options)


def first_sizes(sizes: BatchSizes, *, graphs: bool) -> list[int]:
    """The sizes for the first call, each for where the one before does not fit into memory. Pure.

    CUDA graphs share one pool of memory, so that the largest is recorded first.
    """
    largest = [max(sizes.buckets)] if graphs and sizes.buckets else []
    return list(dict.fromkeys([*largest, sizes.smallest]))


def _read(kind: FileKind, path: Path, device: Any, *, context: Context) -> Program:
    if kind is FileKind.EXPORTED:
        return read_exported(path, device)
    readers = {FileKind.PACKAGE: read_package, FileKind.SCRIPT: read_script, FileKind.WEIGHTS: read_weights}
    return readers[kind](path, device, context)


def _adapted(torch: Any, program: Program, options: RuntimeOptions) -> Any:
    module = program.module
    if options.quantize == "int8":
        module = quantized(torch, module)
    if options.precision in HALVES:
        module = cast(torch, module, getattr(torch, HALVES[options.precision]))
    if options.channels_last:
        module = module.to(memory_format=torch.channels_last)
    return module


def _program_call(torch: Any, program: Program, context: Context) -> ProgramCall:
    options, names = context.runtime, context.options.get("outputs", ())
    sizes = program.batch.padded_to(options.batch_buckets)
    if sizes.low == sizes.high and sizes.low > 1:
        sizes = replace(sizes, buckets=(sizes.low,))
    half = HALVES.get(options.precision)
    elements = [half if half and element == "float32" else element for element in program.elements]
    return ProgramCall(
        ports=program.ports,
        dtypes=tuple(getattr(torch, element) for element in elements),
        sizes=sizes,
        names=tuple(map(str, names)),
        channels_last=options.channels_last,
        marks_batch=options.compile != "off" and not sizes.buckets and sizes.free,
    )


def _call(torch: Any, program: Program, program_call: ProgramCall, *, context: Context) -> Call:
    """The program as a function of its tensors, compiled and recorded in CUDA graphs if the options say so."""
    options, module, arguments = context.runtime, program.module, program.arguments
    if options.compile != "off":
        module = _compiled(torch, module, program_call, context=context)

    def call(tensors: Sequence[Any]) -> Any:
        args, kwargs = arguments(tensors)
        return module(*args, **kwargs)

    plain = _plain_errors(torch, call, kind=program.kind, device=context.device)
    if not options.cuda_graphs:
        return plain
    if any(None in port.shape for port in program.ports):
        raise HandlerLoadError(
            "cuda_graphs need inputs of one shape, and this model's have free dimensions; leave it out, or fix them at export"
        )
    return GraphedCall(torch, plain)


def _plain_errors(torch: Any, call: Call, *, kind: FileKind, device: str) -> Call:
    """The call, whose errors tell what happened as those of plain torch do."""
    if kind is FileKind.SCRIPT:
        return without_traceback(torch, call)
    if kind is FileKind.PACKAGE and device.startswith("cuda"):
        # The nested form: the flat form is rebuilt, with a hundred names, for each call.
        return telling_memory(call, lambda: int(torch.cuda.memory_stats_as_nested_dict(device).get("num_ooms", 0)))
    return call


def _compiled(torch: Any, module: Any, program_call: ProgramCall, *, context: Context) -> Any:
    """Compile once per bucket. Without buckets compile for size 1 and for all other sizes, whose batch axis is marked.

    tests/unit/handlers/runtimes/torch/test_compile.py counts them. If every size were fixed, torch would give up after 8.
    """
    options, device = context.runtime, context.device.partition(":")[0]
    check_compiler(device, found=shutil.which, compiler=os.environ.get("CXX" if device == "cpu" else "CC"))
    if options.cache_dir:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(context.folder / options.cache_dir)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, len(program_call.sizes.buckets) + 1)
    # A pool of compiler processes would use cores of other slots, and would outlive the compilation.
    torch._inductor.config.compile_threads = 1
    fixed = bool(program_call.sizes.buckets) and not any(None in port.shape for port in program_call.ports)
    return torch.compile(module, mode=options.compile, dynamic=False if fixed else None)


class _DoesNotFit(HandlerLoadError):
    """The first call ran out of memory."""


def _run_once(runtime: TorchRuntime, feed: dict[str, Any] | None, *, file: str, options: RuntimeOptions) -> float:
    """Make the first call, which compiles and records; its seconds. Raises `HandlerLoadError` if the call fails."""
    if feed is None:
        return 0.0
    began = perf_counter()
    try:
        runtime.run(feed)
    except PenstockError as error:
        raise HandlerLoadError(f"{file} was loaded, but {error.message}") from error
    except Exception as error:
        # torch, its compilers and the model's code raise errors of any class here.
        chosen = ", ".join(_extras(options))
        advice = f"it may not take {chosen}: leave that out, or save the model that way" if chosen else "check the file"
        words = str(error).strip().partition("\n")[0][:400]
        kind = _DoesNotFit if is_out_of_memory(error) else HandlerLoadError
        raise kind(f"{file} was loaded, but its first call failed: {type(error).__name__}: {words}; {advice}") from error
    return perf_counter() - began


def _example_feed(program: Program, program_call: ProgramCall, rows: int) -> dict[str, Any] | None:
    """A batch of this size: the file's own example, else zeros if all shapes are fixed, else None."""
    import numpy as np

    if program.example is not None:
        firsts = [_as_array(example) for example in program.example]
        return {
            port.name: np.repeat(first[:1], rows, axis=0).astype(port.dtype)
            for port, first in zip(program_call.ports, firsts, strict=True)
        }
    if any(None in port.shape for port in program_call.ports):
        return None
    return {port.name: np.zeros((rows, *[size or 0 for size in port.shape]), port.dtype) for port in program_call.ports}


def _as_array(example: Any) -> Any:
    plain = example.detach().cpu()
    return (plain.float() if plain.is_floating_point() else plain).numpy()


def _extras(options: RuntimeOptions) -> list[str]:
    """The settings that change how the file is run, in the words of the settings."""
    said = [options.precision] if options.precision != "fp32" else []
    said += ["channels_last"] if options.channels_last else []
    said += [f"compile={options.compile}"] if options.compile != "off" else []
    said += [options.quantize] if options.quantize != "off" else []
    return said + (["cuda_graphs"] if options.cuda_graphs else [])
