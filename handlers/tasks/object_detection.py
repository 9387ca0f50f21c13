"""Object detection: labels, scores and boxes of the objects in an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from penstock.handlers.contract import Context, Failure
from penstock.handlers.tasks import boxes
from penstock.handlers.tasks.image_task import Count, ImageOptions, ImageTask
from penstock.handlers.tasks.images import Fit, FrameTransform
from penstock.handlers.tasks.labels import NOT_NUMBERS, read_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

Share = Annotated[float, Meta(ge=0, le=1)]


class ObjectDetectionOptions(ImageOptions, kw_only=True, frozen=True):
    """`boxes`: the model gives corners, or centre and size. `normalized`: in 0 to 1 instead of in pixels. `auto`: as the names
    of the outputs suggest. `nms` is the largest allowed overlap of two boxes of one class; 1 keeps all boxes.
    """

    fit: Fit = "letterbox"
    labels: str = ""
    threshold: Share = 0.5
    nms: Share = 0.5
    max_detections: Count = 100
    boxes: Literal["auto", "xyxy", "cxcywh"] = "auto"
    normalized: bool | Literal["auto"] = "auto"
    answer: Literal["by_field", "by_label"] = "by_field"


class ObjectDetection(ImageTask):
    """Finds objects in an image: label, score and box of each, best first, in pixels of the image as sent."""

    task: ClassVar[str] = "object-detection"
    defaults: ClassVar[ObjectDetectionOptions] = ObjectDetectionOptions()
    options: ObjectDetectionOptions

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        self.labels = read_labels(context.folder, self.options.labels)

    def answer(self, outputs: dict[str, Array], transform: FrameTransform) -> list[dict[str, Any]] | Failure:
        import numpy as np

        options = self.options
        objects = boxes.detections(outputs, options.output)
        if np.isnan(objects.scores).any():
            return NOT_NUMBERS
        objects = boxes.above_threshold(objects, options.threshold)
        objects = objects._replace(boxes=self._corners(objects.boxes, detr="pred_boxes" in outputs and not options.output))
        if options.nms < 1:
            objects = boxes.without_overlaps(objects, options.nms)
        objects = objects._replace(boxes=boxes.in_image_pixels(objects.boxes, transform))
        return [self._answer_for(*row) for row in zip(*(array[: options.max_detections] for array in objects), strict=True)]

    def _corners(self, model_boxes: Array, *, detr: bool) -> Array:
        """Corners in pixels of the model's frame."""
        import numpy as np

        options = self.options
        as_corners = (
            boxes.corners(model_boxes) if options.boxes == "cxcywh" or (options.boxes == "auto" and detr) else model_boxes
        )
        normalized = detr if options.normalized == "auto" else options.normalized
        return as_corners * np.array([self.frame.width, self.frame.height] * 2) if normalized else as_corners

    def _answer_for(self, box: Array, score: Any, label: Any) -> dict[str, Any]:
        name, corners = self.labels.name(int(label)), [float(value) for value in box]
        if self.options.answer == "by_label":
            return {name: corners, "score": float(score)}
        return {"label": name, "score": float(score), "box": dict(zip(("x1", "y1", "x2", "y2"), corners, strict=True))}
