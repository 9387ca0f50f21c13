"""The models of archives: a class with its weights, TorchScript, or ONNX. Weights are read as data, never as code."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.distribution import install_hint
from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.child.surface.lookups import list_classes_from_module


def device_of(gpu_id: Any) -> str:
    """The name of torch's device: a GPU by its index among the visible ones, Apple's, or the CPU."""
    if gpu_id is None:
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return f"cuda:{gpu_id}"
    if torch.backends.mps.is_available():
        return "mps"
    raise HandlerLoadError(
        f"the model is to run on GPU {gpu_id}, and torch {torch.__version__} sees none; install a CUDA build of torch and the "
        'driver, or set device = "cpu"'
    )


def eager_model(model_dir: str, model_file: str, weights: str, map_location: Any) -> Any:
    """The only class of `model_file`, built without arguments, with the state dict of the file `weights` (empty: its own)."""
    if not Path(model_dir, model_file).is_file():
        raise RuntimeError(f"Missing the {model_file} file")
    classes = list_classes_from_module(import_module(Path(model_file).stem))
    if len(classes) != 1:
        raise ValueError(f"Expected only one class as model definition. {classes}")
    model = classes[0]()
    if weights:
        model.load_state_dict(state_dict(weights, map_location))
    return model


def state_dict(weights: str, map_location: Any) -> Any:
    """The tensors of a file that `torch.save` wrote. Raises `HandlerLoadError` for a file with other objects in it."""
    return plain_content(
        weights, map_location, "Save the weights with torch.save(model.state_dict(), ...) and pack them with the model's file"
    )


def plain_content(path: str, map_location: Any, advice: str) -> Any:
    """Tensors, numbers, texts, lists and dicts of a file that `torch.save` wrote. `advice` ends the error for anything else."""
    import torch

    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        # torch raises UnpicklingError of the module `pickle`, which nothing here may import.
        if type(error).__name__ != "UnpicklingError":
            raise
        reason = str(error).partition("WeightsUnpickler error:")[2].strip().partition("\n")[0] or "it is no file of torch.save"
        raise HandlerLoadError(
            f"{Path(path).name} holds more than plain values ({reason}): loading it could run code. {advice}"
        ) from error


def torchscript_model(path: str, map_location: Any) -> Any:
    import torch

    with warnings.catch_warnings():
        # A reader of the log cannot change the format in which an archive holds its model.
        warnings.filterwarnings("ignore", r"`torch\.jit\.load` is ", DeprecationWarning)
        return torch.jit.load(path, map_location=map_location)


def onnx_session(path: str, device: str) -> Any:
    """An `onnxruntime.InferenceSession`, with as many threads as the process has cores of its own."""
    try:
        library = import_module("onnxruntime")
    except ImportError as error:
        raise HandlerLoadError(
            f"{Path(path).name} needs onnxruntime, which cannot be imported ({error}); run: {install_hint('onnx')}"
        ) from error
    wanted = "CUDAExecutionProvider" if device.startswith("cuda") else "CPUExecutionProvider"
    if wanted not in library.get_available_providers():
        raise HandlerLoadError(
            f"{Path(path).name} is to run on {device}, and this onnxruntime runs on the CPU only; "
            f"run: {install_hint('onnx-gpu')}"
        )
    settings = library.SessionOptions()
    settings.intra_op_num_threads = len(os.sched_getaffinity(0))
    settings.inter_op_num_threads = 1
    return library.InferenceSession(path, sess_options=settings, providers=[wanted])


def is_session(model: Any) -> bool:
    """Whether the model is an ONNX session, which is run and not called."""
    return hasattr(model, "get_inputs") and hasattr(model, "run")


def run_session(session: Any, data: Any) -> Any:
    """The first output for `data`, a tensor for the model's only input or a mapping of names to tensors."""
    import torch

    names = [one.name for one in session.get_inputs()]
    given = data if hasattr(data, "keys") else {names[0]: data}
    if set(given) != set(names):
        raise ValueError(f"the ONNX model takes {', '.join(names)}, and preprocess gave {', '.join(given)}")
    feed = {name: value.detach().cpu().numpy() if hasattr(value, "detach") else value for name, value in given.items()}
    return torch.as_tensor(session.run(None, feed)[0])
