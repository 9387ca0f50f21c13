"""`torch.compile` as model-config.yaml asks for it under `pt2`. A model that cannot be compiled runs as it is."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)

BACKENDS = (
    "eager",
    "aot_eager",
    "inductor",
    "nvfuser",
    "aot_nvfuser",
    "aot_cudagraphs",
    "ofi",
    "fx2trt",
    "onnxrt",
    "ipex",
    "torchxla_trace_once",
    "openvino",
    "tensorrt",
    "hpu_backend",
)


def check_valid_pt2_backend(backend: str) -> bool:
    """Whether torch.compile has a backend of this name; logs a warning if not."""
    if backend in BACKENDS:
        return True
    log.warning("%s is not a supported backend", backend)
    return False


def compile_options(pt2: Any) -> dict[str, Any] | None:
    """What `pt2` of model-config.yaml gives to `torch.compile`; None if the model is to run as it is.

    `{"compile": {"enable": true, ...}}` is the usual form; a backend's name or the options alone is the old one.
    """
    if isinstance(pt2, str):
        return {"backend": pt2}
    if not isinstance(pt2, dict):
        return None
    if "compile" not in pt2:
        return dict(pt2) if "backend" in pt2 else None
    asked = pt2["compile"]
    if not isinstance(asked, dict) or not asked.get("enable"):
        return None
    return {name: value for name, value in asked.items() if name != "enable"}


def compiled(model: Any, pt2: Any) -> Any:
    """The model compiled as `pt2` asks, or the model itself."""
    options = compile_options(pt2)
    if options is None or ("backend" in options and not check_valid_pt2_backend(options["backend"])):
        return model
    import torch

    said = ", ".join(f"{name} {value}" for name, value in options.items())
    try:
        fast = torch.compile(model, **options)
    except Exception as error:  # noqa: BLE001 - whatever a backend raises, the model still runs without it
        log.warning("Compiling the model with %s has failed, so it runs uncompiled: %s", said, error)
        return model
    log.info("Compiled model with %s", said)
    return fast
