"""Torch files that do not name their inputs: AOTInductor packages, TorchScript, weights with a model class."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.distribution import install_hint
from penstock.errors import HandlerError, HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.modules import import_file, import_name
from penstock.handlers.runtimes.contract import kind_of
from penstock.handlers.runtimes.torch.archive import FileKind, package_target
from penstock.handlers.runtimes.torch.declared import DeclaredInputs, declared_inputs
from penstock.handlers.runtimes.torch.package_shapes import batch_sizes_to_ask, check_shapes, load_package
from penstock.handlers.runtimes.torch.program import Arguments, Program, by_name

_TRACED = "in the TorchScript interpreter."
# The line after the traceback: all lines of the traceback are indented, blank, or name a place in a file.
_RAISED = re.compile(r"^(?:\w+\.)*(\w+):(?: |$)", re.MULTILINE)


def without_traceback(torch: Any, call: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    """The same call with plain errors. torch's own errors keep their class, which tells running out of memory from others."""

    def called(tensors: Sequence[Any]) -> Any:
        try:
            return call(tensors)
        except (RuntimeError, torch.jit.Error) as error:
            name, words = _raised(str(error))
            if not name:
                raise
            if isinstance(error, torch.jit.Error):
                # The model's own `raise`; only the name of the class is known.
                raise HandlerError(f"{name}: {words}" if words else name) from error
            raise type(error)(words) from error

    return called


def telling_memory(call: Callable[[Sequence[Any]], Any], count_ooms: Callable[[], int]) -> Callable[[Sequence[Any]], Any]:
    """The same call, which raises `MemoryError` where memory ran out. AOTInductor raises one and the same RuntimeError for that
    and for a wrong dtype, so the count of the allocator decides (pytorch issue 146524).
    """

    def called(tensors: Sequence[Any]) -> Any:
        before = count_ooms()
        try:
            return call(tensors)
        except RuntimeError as error:
            if count_ooms() == before:
                raise
            words = str(error)
        # Outside: an error raised above would hold the first one's frames, and with them the batch's memory.
        raise MemoryError(f"the GPU ran out of memory in an AOTInductor package: {words}")

    return called


def _raised(text: str) -> tuple[str, str]:
    """Class and message of the error at the end of a traceback; empty without a traceback. Pure."""
    if _TRACED not in text.partition("\n")[0]:
        return "", ""
    matches = list(_RAISED.finditer(text))
    return (matches[-1][1], text[matches[-1].end() :].strip()) if matches else ("", "")


_CPU_FLAGS = Path("/proc/cpuinfo")


def read_package(path: Path, device: Any, context: Context) -> Program:
    """Open an AOTInductor package. Raises `HandlerLoadError` for a package of another device or processor, which would fail or
    end the process."""
    target = package_target(path)
    _check_target(path, target, device)
    declared = declared_inputs(context.options, file=path.name, kind=FileKind.PACKAGE)
    sizes = batch_sizes_to_ask(declared, buckets=context.runtime.batch_buckets, limit=context.max_batch_size)
    try:
        check_shapes(path, device, declared=declared, sizes=sizes)
        module = load_package(path, device)
    except HandlerLoadError:
        raise
    except Exception as error:
        raise unreadable(path, error, "compile it again with this version of torch") from error
    return _program(FileKind.PACKAGE, module, lambda tensors: (tensors, {}), declared=declared)


def _check_target(path: Path, target: dict[str, Any], device: Any) -> None:
    built = target.get("AOTI_DEVICE_KEY", device.type)
    if built != device.type:
        raise HandlerLoadError(
            f"{path.name} was compiled for {built} and cannot run on {device.type}; "
            f'set device = "{built}", or compile the model again on a machine with {device.type}'
        )
    missing = missing_instructions(str(target.get("AOTI_CPU_ISA", "")), _processor_flags()) if built == "cpu" else []
    if missing:
        raise HandlerLoadError(
            f"{path.name} was compiled for a processor with {', '.join(missing)}, which this one lacks; "
            "compile the model again on a machine of this kind"
        )


def missing_instructions(wanted: str, flags: set[str]) -> list[str]:
    """The instruction sets that a package was compiled with and that the processor's flags lack. Pure.

    Empty flags (other systems than Linux on x86) mean that nothing is known; then nothing counts as missing.
    """
    names = {"AVX512": "avx512f", "AMX_TILE": "amx_tile"}
    needed = [name for name in wanted.replace(",", " ").split() if name.startswith(("AVX", "AMX"))]
    return [name for name in needed if flags and names.get(name, name.lower()) not in flags]


def _processor_flags() -> set[str]:
    try:
        lines = _CPU_FLAGS.read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def read_script(path: Path, device: Any, context: Context) -> Program:
    declared = declared_inputs(context.options, file=path.name, kind=FileKind.SCRIPT)
    try:
        with warnings.catch_warnings():
            # TorchScript is deprecated, but the user's file is TorchScript; docs/reference/runtimes.md recommends torch.export.
            warnings.filterwarnings("ignore", r"`torch\.jit\.load` is deprecated", DeprecationWarning)
            module = import_module("torch.jit").load(str(path), map_location=device)
    except (RuntimeError, ValueError) as error:
        raise unreadable(path, error, "save it again with torch.jit.save, or better with torch.export.save") from error
    names = [port.name for port in declared.ports]
    parameters = [argument.name for argument in module.forward.schema.arguments]
    return _program(FileKind.SCRIPT, module.eval(), by_name(names, parameters), declared=declared)


def read_weights(path: Path, device: Any, context: Context) -> Program:
    """An instance of `options.model_class` with the file's weights. Nothing in the file is run as code."""
    state = weights(path, context)
    module = model_class(path, context)
    declared = declared_inputs(context.options, file=path.name, kind=FileKind.WEIGHTS)
    try:
        module.load_state_dict({**_tied(module, state), **state})
    except RuntimeError as error:
        raise HandlerLoadError(
            f"the weights in {path.name} do not fit {type(module).__name__}: {str(error)[:800]}; "
            "check options.model_class and options.model_args"
        ) from error
    parameters = inspect.signature(module.forward).parameters
    arguments = by_name([port.name for port in declared.ports], parameters)
    return _program(FileKind.WEIGHTS, module.to(device).eval(), arguments, declared=declared)


def _tied(module: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The tensors that the file leaves out because another name holds the same memory, as `safetensors.torch.save_model` does.
    The tensors that the file leaves out because another name holds the same memory, as `safetensors.torch.save_model` does.
    """
    own = module.state_dict()
    filled = {_memory(own[name]) for name in state if name in own and _covers(own[name])}
    # A tensor is copied onto itself; its memory is filled through the name that the file has.
    return {name: tensor for name, tensor in own.items() if name not in state and tensor.numel() and _memory(tensor) in filled}


def _memory(tensor: Any) -> int:
    start: int = tensor.untyped_storage().data_ptr()
    return start


def _covers(tensor: Any) -> bool:
    """Whether the tensor covers all of its memory. A view of a part would leave the rest uninitialised."""
    return bool(tensor.nbytes == tensor.untyped_storage().nbytes())


def weights(path: Path, context: Context) -> dict[str, Any]:
    """Tensors by name. Raises `HandlerLoadError` for a pickled module and for a checkpoint without `options.weights_key`."""
    tensors = _safetensors(path) if kind_of(path) == ".safetensors" else _state_dict(path)
    key = context.options.get("weights_key")
    if key is not None:
        tensors = tensors.get(key) if isinstance(tensors, dict) else None
    if isinstance(tensors, dict) and tensors and all(hasattr(value, "dtype") for value in tensors.values()):
        return tensors
    held = f"the entries {', '.join(map(str, tensors))}" if isinstance(tensors, dict) else f"a {type(tensors).__name__}"
    raise HandlerLoadError(
        f"{path.name}{f' under {key!r}' if key is not None else ''} holds no table of tensors by name, but {held}; "
        "save model.state_dict(), or name the entry that holds it in options.weights_key"
    )


def _safetensors(path: Path) -> Any:
    try:
        load_file = import_module("safetensors.torch").load_file
    except ImportError as error:
        raise HandlerLoadError(
            f"{path.name} needs safetensors, which is not installed; run: {install_hint('torch')}"
        ) from error
    try:
        return load_file(path)
    except Exception as error:
        # safetensors' own error derives from Exception directly.
        raise unreadable(path, error, "save it again with safetensors.torch.save_file") from error


def _state_dict(path: Path) -> Any:
    try:
        return import_module("torch").load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises pickle's, zipfile's, struct's and its own errors here.
        raise HandlerLoadError(
            f"{path.name} is no TorchScript and holds more than weights, or cannot be read ({_refused(error)}). "
            "A pickled module would run code when it is opened, so it is never loaded: save it with torch.export.save as "
            "model.pt2, or its state_dict() as .safetensors with options.model_class"
        ) from error


def model_class(path: Path, context: Context) -> Any:
    """An instance of `options.model_class`, made with `options.model_args` (a table of named arguments, or a list)."""
    source, where, name = located_class(path, context)
    module = import_file(context.folder / where) if where.endswith(".py") else import_name(where)
    kind = getattr(module, name, None)
    if not isinstance(kind, type) or not issubclass(kind, import_module("torch").nn.Module):
        raise HandlerLoadError(f"options.model_class {source!r}: {where} has no torch.nn.Module class called {name!r}")
    given = context.options.get("model_args", {})
    try:
        return kind(**given) if isinstance(given, dict) else kind(*given)
    except TypeError as error:
        raise HandlerLoadError(f"options.model_args {given!r} do not fit {source}: {error}") from error


def located_class(path: Path, context: Context) -> tuple[str, str, str]:
    """`options.model_class`, its file or module, and the class's name. Raises `HandlerLoadError` if the option or the file is
    missing.
    """
    source = context.options.get("model_class")
    if not isinstance(source, str) or ":" not in source:
        raise HandlerLoadError(
            f"{path.name} holds weights alone; name the class they belong to in the model's options, "
            'as in model_class = "net.py:Net" (next to the weights) or "package.module:Net"'
        )
    where, _, name = source.rpartition(":")
    if where.endswith(".py") and not (context.folder / where).is_file():
        raise HandlerLoadError(
            f"options.model_class {source!r}: there is no file {context.folder / where}; it is looked for next to the weights"
        )
    return source, where, name


def _program(kind: FileKind, module: Any, arguments: Arguments, *, declared: DeclaredInputs) -> Program:
    return Program(kind, module, arguments, declared.ports, declared.elements, declared.batch)


def unreadable(path: Path, error: Exception, advice: str) -> HandlerLoadError:
    """The error for a file that torch refuses; `advice` says how to make a file that torch accepts."""
    return HandlerLoadError(f"torch cannot load {path.name}: {_first_line(error)}; {advice}")


def _refused(error: Exception) -> str:
    """What torch refused to read, without torch's advice to read it unsafely."""
    _, marker, reason = str(error).partition("WeightsUnpickler error:")
    return reason.strip().partition("\n")[0].partition(" by default.")[0] if marker else _first_line(error)


def _first_line(error: Exception) -> str:
    """The error's class and the beginning of its message: torch's messages run over pages."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]
