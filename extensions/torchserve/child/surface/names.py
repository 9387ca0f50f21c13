"""The modules and names of `ts` that are here, where each lies in penstock, and the errors for all others. Pure."""

from __future__ import annotations

_PACKAGE = "penstock.extensions.torchserve.child"
# Where `ts` has no version of its own to tell, code that looks for one gets the release that is reproduced.
REPRODUCED = "0.12.0"
PAGE = "docs/reference/torchserve.md"

_CONTEXT = {"Context": "context:TorchServeContext", "RequestProcessor": "context:RequestProcessor"}
_EXCEPTION = {"PredictionException": "errors:PredictionException"}
_INTERMEDIATE = {"send_intermediate_predict_response": "streaming:send_intermediate_predict_response"}
_METRIC_TYPES = {"MetricTypes": "surface.metric_words:MetricTypes"}
_DIMENSION = {"Dimension": "surface.metric_words:Dimension"}
_BASE = {"BaseHandler": "surface.base_handler:BaseHandler"}

# Module of `ts` -> name in it -> module and attribute below `_PACKAGE`.
MODULES: dict[str, dict[str, str]] = {
    "ts": {},
    "ts.version": {},
    "ts.context": _CONTEXT,
    "ts.service": {**_CONTEXT, **_EXCEPTION},
    "ts.utils": {},
    "ts.utils.util": {
        **_EXCEPTION,
        "check_valid_pt2_backend": "surface.compiling:check_valid_pt2_backend",
        "list_classes_from_module": "surface.lookups:list_classes_from_module",
        "load_label_mapping": "surface.lookups:load_label_mapping",
        "map_class_to_label": "surface.lookups:map_class_to_label",
    },
    "ts.handler_utils": {},
    "ts.handler_utils.timer": {"timed": "surface.timing:timed"},
    "ts.handler_utils.utils": {**_INTERMEDIATE, "import_class": "surface.lookups:import_class"},
    "ts.protocol": {},
    "ts.protocol.otf_message_handler": _INTERMEDIATE,
    "ts.metrics": {},
    "ts.metrics.dimension": _DIMENSION,
    "ts.metrics.metric": {"Metric": "surface.metrics:Metric", **_METRIC_TYPES},
    "ts.metrics.metric_type_enum": _METRIC_TYPES,
    "ts.metrics.unit": {"Units": "surface.metric_words:Units"},
    "ts.torch_handler": {},
    "ts.torch_handler.base_handler": _BASE,
    "ts.torch_handler.vision_handler": {"VisionHandler": "surface.vision:VisionHandler"},
    "ts.torch_handler.image_classifier": {"ImageClassifier": "surface.vision:ImageClassifier"},
    "ts.torch_handler.image_segmenter": {"ImageSegmenter": "surface.vision:ImageSegmenter"},
    "ts.torch_handler.object_detector": {"ObjectDetector": "surface.vision:ObjectDetector"},
    "ts.torch_handler.text_handler": {"TextHandler": "surface.text:TextHandler"},
    "ts.torch_handler.text_classifier": {"TextClassifier": "surface.text:TextClassifier"},
    "ts.torch_handler.request_envelope": {},
    "ts.torch_handler.request_envelope.base": {"BaseEnvelope": "envelopes:BaseEnvelope"},
    "ts.torch_handler.request_envelope.body": {"BodyEnvelope": "envelopes:BodyEnvelope"},
    "ts.torch_handler.request_envelope.json": {"JSONEnvelope": "envelopes:JSONEnvelope"},
    "ts.torch_handler.request_envelope.kserve": {"KServeEnvelope": "envelopes:KServeEnvelope"},
    "ts.torch_handler.request_envelope.kservev2": {"KServev2Envelope": "envelopes:KServev2Envelope"},
}

# What `handler` of a manifest may name without a file, and the class that it then is.
BUILTINS = {
    "base_handler": "BaseHandler",
    "image_classifier": "ImageClassifier",
    "image_segmenter": "ImageSegmenter",
    "object_detector": "ObjectDetector",
    "text_classifier": "TextClassifier",
}

_NO_ENGINE = "scheduling by tokens belongs to an engine for language models; run one beside penstock"
_ONE_PROCESS = "a model runs in one process per slot; load it in `initialize` with what your library offers for one process"
_OVERLAPS = "penstock runs `preprocess` of a batch beside `inference` of another; set the batch size instead"
_NO_DALI = "DALI is not supported; decode with Pillow in `preprocess`"
# Modules of TorchServe that are left out on purpose: what to do instead.
LEFT_OUT = {
    "ts.async_service": _NO_ENGINE,
    "ts.torch_handler.vllm_handler": _NO_ENGINE,
    "ts.torch_handler.trt_llm_handler": _NO_ENGINE,
    "ts.handler_utils.hf_batch_streamer": _NO_ENGINE,
    "ts.handler_utils.distributed": _ONE_PROCESS,
    "ts.torch_handler.distributed": _ONE_PROCESS,
    "ts.torch_handler.dali_handler": _NO_DALI,
    "ts.torch_handler.dali_image_classifier": _NO_DALI,
    "ts.handler_utils.preprocess": _NO_DALI,
    "ts.handler_utils.micro_batching": _OVERLAPS,
}


def children(module: str) -> list[str]:
    """The modules directly below this one."""
    return [name.rpartition(".")[2] for name in MODULES if name.rpartition(".")[0] == module]


def location_of(module: str, name: str) -> tuple[str, str] | None:
    """The module of penstock that has the name, and its name there; None if there is no such name."""
    location = MODULES[module].get(name)
    if location is None:
        return None
    own, _, attribute = location.partition(":")
    return f"{_PACKAGE}.{own}", attribute


def unknown_module(module: str) -> str:
    """The error text for an import of a module of `ts` that is not here."""
    for left_out, advice in LEFT_OUT.items():
        if module == left_out or module.startswith(f"{left_out}."):
            return f"penstock's ts has no {module}: {advice} ({PAGE})"
    parent = module.rpartition(".")[0]
    modules = children(parent) if parent in MODULES else children("ts")
    listed = f"{parent if parent in MODULES else 'ts'} has the modules {', '.join(modules) or 'none'}"
    return f"penstock's ts has no {module}; {listed}. Put what you need of it into a file of the archive ({PAGE})"


def unknown_name(module: str, name: str) -> str:
    """The error text for a name that a module of `ts` does not have."""
    if f"{module}.{name}" in LEFT_OUT:
        return unknown_module(f"{module}.{name}")
    names = [*MODULES[module], *children(module)]
    return (
        f"penstock's {module} has no {name}; it has {', '.join(names) or 'no names'}. "
        f"Put what you need of it into a file of the archive ({PAGE})"
    )
