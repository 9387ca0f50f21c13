"""`ts.torch_handler.base_handler.BaseHandler`: the base class of handlers. It imports torch once a stage needs it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.extensions.torchserve.child.surface.compiling import compiled
from penstock.extensions.torchserve.child.surface.lookups import load_label_mapping
from penstock.extensions.torchserve.child.surface.timing import timed
from penstock.extensions.torchserve.child.surface.weights import (
    device_of,
    eager_model,
    is_session,
    onnx_session,
    run_session,
    torchscript_model,
)

log = logging.getLogger(__name__)
_MAPPING = "index_to_name.json"
_PROFILER = "ENABLE_TORCH_PROFILER"


class BaseHandler:
    """Loads the archive's model in `initialize`; `handle` runs `preprocess`, `inference` and `postprocess` on a batch.

    Each stage may be overridden. What `handle` gets and returns is a list with one entry per request.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, str] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: Any = None
        self.map_location: Any = None
        self.explain = False
        self.target: Any = 0
        self.profiler_args: dict[str, Any] = {}
        self.model_yaml_config: dict[str, Any] = {}

    def initialize(self, context: Any) -> None:
        """Load the model that the manifest names. Raises `RuntimeError` if there is none."""
        properties = context.system_properties
        self.context = context
        self.manifest = context.manifest
        self.model_yaml_config = getattr(context, "model_yaml_config", None) or {}
        self._choose_device(properties.get("gpu_id"))
        self.model = self._load(properties.get("model_dir"), self.manifest["model"])
        if hasattr(self.model, "to"):
            self.model.to(self.device)
        if hasattr(self.model, "eval"):
            self.model.eval()
        self.model = self._compile(self.model)
        self.mapping = load_label_mapping(str(Path(properties.get("model_dir"), _MAPPING)))
        self.initialized = True

    def _choose_device(self, gpu_id: Any) -> None:
        import torch

        name = device_of(gpu_id)
        self.device = torch.device(name)
        # Weights are placed by the kind of device; the model is then moved to the very one.
        self.map_location = name.partition(":")[0]

    def _load(self, model_dir: str, model: Mapping[str, Any]) -> Any:
        serialized, model_file = model.get("serializedFile") or "", model.get("modelFile") or ""
        self.model_pt_path = str(Path(model_dir, serialized)) if serialized else None
        if model_file:
            return self._load_pickled_model(model_dir, model_file, self.model_pt_path)
        if self.model_pt_path and serialized.endswith(".pt"):
            return self._load_torchscript_model(self.model_pt_path)
        if self.model_pt_path and serialized.endswith(".onnx"):
            return onnx_session(self.model_pt_path, str(self.device))
        raise RuntimeError(
            f"No model weights could be loaded. The archive's serialized file is {serialized or 'not named'}; BaseHandler "
            "loads .pt (TorchScript), .onnx, and weights together with a --model-file; for anything else override initialize"
        )

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        return eager_model(model_dir, model_file, model_pt_path or "", self.map_location)

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        return torchscript_model(model_pt_path, self.map_location)

    def _compile(self, model: Any) -> Any:
        return compiled(model, self.model_yaml_config.get("pt2"))

    @timed
    def preprocess(self, data: Any) -> Any:
        """The batch as a tensor on the device."""
        import torch

        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """What the model answers to what `preprocess` returned, without gradients."""
        import torch

        with torch.inference_mode():
            if is_session(self.model):
                return run_session(self.model, data)
            return self.model(data.to(self.device), *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> Any:
        """A list with one entry per request."""
        return data.tolist()

    def handle(self, data: Any, context: Any) -> Any:
        """The answers to a batch of rows; its time is recorded as `HandlerTime`."""
        began = time.perf_counter()
        self.context = context
        if self._is_describe():
            answers: Any = [self.describe_handle()]
        elif os.environ.get(_PROFILER, "").lower() == "true":
            answers, _ = self._infer_with_profiler(data)
        else:
            answers = self._answers(data)
        if metrics := getattr(context, "metrics", None):
            metrics.add_time("HandlerTime", round((time.perf_counter() - began) * 1000, 2), None, "ms")
        return answers

    def _answers(self, data: Any) -> Any:
        prepared = self.preprocess(data)
        if self._is_explain():
            return self.explain_handle(prepared, data)
        return self.postprocess(self.inference(prepared))

    def _infer_with_profiler(self, data: Any) -> tuple[Any, Any]:
        """The answers and torch's profile of the stages, whose table is logged."""
        from penstock.extensions.torchserve.child.surface.timing import profiled

        return profiled(lambda: self._answers(data), self.profiler_args)

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> Any:
        """What `get_insights` says of the batch. Its target is that of the first row, 0 if it names none."""
        row = raw_data[0] if isinstance(raw_data, Sequence) and raw_data else None
        inputs = None
        if isinstance(row, Mapping):
            inputs = row.get("data") or row.get("body")
            self.target = int(row.get("target") or 0)
        return self.get_insights(data_preprocess, inputs, self.target)

    def get_insights(self, tensor_data: Any, raw_data: Any, target: Any = 0) -> Any:
        """Why the model answers as it does, one entry per request. To be overridden."""
        raise NotImplementedError(f"{type(self).__name__} explains nothing: it has no method get_insights")

    def describe_handle(self) -> Any:
        """What a description of the model has as `customizedMetadata`. To be overridden."""
        return None

    def get_device(self) -> Any:
        return self.device

    def _is_explain(self) -> bool:
        self.explain = self._asks("explain")
        return self.explain

    def _is_describe(self) -> bool:
        return self._asks("describe")

    def _asks(self, header: str) -> bool:
        return bool(self.context) and self.context.get_request_header(0, header) == "True"
