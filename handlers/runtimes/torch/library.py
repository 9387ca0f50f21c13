"""Sets up torch for one model: imports it, fixes its threads and its float32 arithmetic, checks the device."""

from __future__ import annotations

import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

from penstock.distribution import install_hint
from penstock.errors import HandlerLoadError


def torch_library() -> Any:
    """The module `torch`. Raises `HandlerLoadError` that names the extra to install."""
    try:
        return import_module("torch")
    except ImportError as error:
        raise HandlerLoadError(
            f"this model needs torch, which cannot be imported ({error}); run: {install_hint('torch')}"
        ) from error


def checked_device(torch: Any, device: str) -> Any:
    """The `torch.device` named `device`. Raises `HandlerLoadError` if torch cannot run on it."""
    kind, _, index = device.partition(":")
    if device == "cpu":
        return torch.device("cpu")
    if kind != "cuda" or (index and not index.isdecimal()):
        raise HandlerLoadError(f"torch models run on cpu, cuda or cuda:N, not on {device!r}; change `device`")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
        raise HandlerLoadError(
            f"device {device!r} was asked for, but torch {torch.__version__} (built for {built}) sees {count} GPUs; "
            'install a CUDA build of torch and the driver, or set device = "cpu"'
        )
    chosen = torch.device("cuda", int(index or 0))
    # Streams, graph captures and compiled kernels use the current device.
    torch.cuda.set_device(chosen)
    return chosen


def set_up(torch: Any, device: Any, *, threads: int, precision: str) -> None:
    """Set the precision of float32 for the whole process, which holds one model. Only `tf32` lets a GPU round float32."""
    torch.set_num_threads(threads)
    # torch accepts it once, before the first parallel work; model code that set it earlier keeps its own number.
    with suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    if device.type == "cuda":
        _fix_float32(torch, tf32=precision == "tf32")


def _fix_float32(torch: Any, *, tf32: bool) -> None:
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    # torch's own default for convolutions is TF32.
    torch.backends.cudnn.allow_tf32 = tf32
    if not tf32:
        # Inductor warns wherever TF32 is off. Here TF32 is off because the model's precision says so.
        warnings.filterwarnings("ignore", r"TensorFloat32 tensor cores .* available but not enabled", UserWarning)


def provider_words(torch: Any, device: Any, *, extras: list[str]) -> str:
    """The provider in words, such as `torch 2.13.0 cuda:0 NVIDIA H200 bf16 compile=default`."""
    where = f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "cpu"
    return " ".join([f"torch {torch.__version__}", where, *extras])
