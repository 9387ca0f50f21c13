"""Finds coloured discs in a picture: the built-in detection task with the model file that fits `runtime`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from scenes import scene

from penstock import Context
from penstock.errors import HandlerLoadError
from penstock.handlers.tasks.object_detection import ObjectDetection, ObjectDetectionOptions

_FILES = {"onnx": "model.onnx", "tensorrt": "model.onnx"}


class DiscOptions(ObjectDetectionOptions, kw_only=True, frozen=True):
    """`files` is the folder with the model files, relative to this one."""

    files: str = "build"


class Discs(ObjectDetection):
    """`runtime` torch (or auto) runs model.pt2, onnx and tensorrt run model.onnx: the same network, so their answers agree."""

    defaults: ClassVar[DiscOptions] = DiscOptions(labels="labels.txt", nms=0.3, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    options: DiscOptions

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        # The size of real pictures, so that the run times of the warm-up are realistic.
        self.sample = scene(0)[0]

    def model_source(self, context: Context, /) -> Path:
        path = context.folder / self.options.files / _FILES.get(context.runtime.runtime, "model.pt2")
        if not path.exists():
            raise HandlerLoadError(f"there is no {path}; write the model files: python {context.folder / 'export.py'}")
        return path
