"""Which options a kind of torch file supports on which device. Other options are refused before the file is loaded. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.torch.archive import FileKind
from penstock.model_spec import RuntimeOptions

Found = Callable[[str], str | None]
# The model options that are read per kind of file. What the file states itself is left out: it would be ignored.
_DECLARED = ("inputs", "outputs", "fixed_batch")
OPTIONS: dict[FileKind, tuple[str, ...]] = {
    FileKind.EXPORTED: ("outputs",),
    FileKind.PACKAGE: _DECLARED,
    FileKind.SCRIPT: _DECLARED,
    FileKind.WEIGHTS: (*_DECLARED, "model_class", "model_args", "weights_key"),
}


def check_options(kind: FileKind, options: RuntimeOptions, device: str) -> None:
    """Refuse options that do not fit, by one `HandlerLoadError` that names them all."""
    faults = [
        *_foreign(options),
        *_precision(kind, options, device),
        *_compile(kind, options),
        *_quantize(kind, options, device),
        *_graphs(kind, options, device),
    ]
    if faults:
        raise HandlerLoadError("; ".join(faults))


def check_compiler(device: str, *, found: Found, compiler: str | None) -> None:
    """Raises `HandlerLoadError` without the compiler that torch.compile calls: `compiler` if it is set, else the usual ones."""
    usual = ("g++", "clang++") if device == "cpu" else ("gcc", "cc", "clang")
    names = (compiler,) if compiler else usual
    if not any(found(name) for name in names):
        raise HandlerLoadError(
            f"compile needs a C{'++' if device == 'cpu' else ''} compiler, and {' or '.join(names)} is not on the path; "
            'install g++ (Debian: apt-get install g++), or set compile = "off"'
        )


def _foreign(options: RuntimeOptions) -> Iterator[str]:
    if options.provider != "auto" or options.session:
        yield "`provider` and `session` are options of ONNX Runtime; leave them out for a torch model"


def _precision(kind: FileKind, options: RuntimeOptions, device: str) -> Iterator[str]:
    precision = options.precision
    if precision == "tf32" and device == "cpu":
        yield 'precision "tf32" is a way of NVIDIA GPUs to multiply and needs device = "cuda"; use fp32 or bf16 on the CPU'
    if precision == "fp16" and device == "cpu":
        # Measured with torch 2.13 on AVX-512 without AVX512-FP16: 7 times (linear) to 50 times (convolution) slower than fp32.
        yield 'precision "fp16" has no fast kernels on the CPU, most run many times slower than fp32; use bf16 or fp32'
    if precision in ("bf16", "fp16") and kind is FileKind.PACKAGE:
        yield f"the precision of {kind} was fixed when it was compiled; compile it again from a {precision} model"
    if options.channels_last and kind is FileKind.PACKAGE:
        yield f"the memory format of {kind} was fixed when it was compiled; leave channels_last out"


def _compile(kind: FileKind, options: RuntimeOptions) -> Iterator[str]:
    if options.compile == "off":
        return
    if kind is FileKind.PACKAGE:
        yield f"{kind} is compiled already; leave `compile` out"
    if kind is FileKind.SCRIPT:
        yield f"torch.compile cannot look into {kind}; leave `compile` out, or save the model with torch.export.save"
    if options.quantize != "off":
        yield "`compile` and `quantize` cannot be used together; leave one of them out"


def _quantize(kind: FileKind, options: RuntimeOptions, device: str) -> Iterator[str]:
    if options.quantize == "off":
        return
    if device != "cpu":
        yield 'quantize "int8" is dynamic quantization, which torch has on the CPU alone; leave it out on a GPU'
    if kind is not FileKind.WEIGHTS:
        yield f"quantize works on the layers of a model class, and {kind} has none; serve its weights with a model class"
    if options.precision != "fp32" or options.channels_last:
        yield "quantize starts from a plain fp32 model; leave `precision` and `channels_last` out"


def _graphs(kind: FileKind, options: RuntimeOptions, device: str) -> Iterator[str]:
    if not options.cuda_graphs:
        return
    if device == "cpu":
        yield 'cuda_graphs record the kernels of a GPU and need device = "cuda"; leave it out on the CPU'
    if kind is FileKind.PACKAGE:
        yield f"cuda_graphs are not recorded around {kind}; leave it out"
    if not options.batch_buckets:
        yield "a CUDA graph is recorded per batch size; name the sizes, as in batch_buckets = [1, 4, 16]"
    if options.compile in ("reduce-overhead", "max-autotune"):
        yield f'compile = "{options.compile}" records CUDA graphs itself; leave cuda_graphs out'
