"""Where in an image its objects are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from penstock.handlers.contract import Context, Failure
from penstock.handlers.tasks import boxes
from penstock.handlers.tasks.image_task import Count, ImageOptions, ImageTask
from penstock.handlers.tasks.images import Fit, Placement
from penstock.handlers.tasks.labels import NOT_NUMBERS, read_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

Share = Annotated[float, Meta(ge=0, le=1)]


class ObjectDetectionOptions(ImageOptions, kw_only=True, frozen=True):
    """`boxes` is how the model writes them (corners or centre and size), `normalized` whether from 0 to 1 instead of in pixels;
    `auto`: as the outputs' names suggest. `nms` is the largest overlap of two boxes of one class; 1 keeps all."""

    fit: Fit = "letterbox"
    labels: str = ""
    threshold: Share = 0.5
    nms: Share = 0.5
    max_detections: Count = 100
    boxes: Literal["auto", "xyxy", "cxcywh"] = "auto"
    normalized: bool | Literal["auto"] = "auto"
    answer: Literal["penstock", "torchserve"] = "penstock"


class ObjectDetection(ImageTask):
    """Finds objects in an image: label, score and box of each, best first, in pixels of the image as sent."""

    task: ClassVar[str] = "object-detection"
    defaults: ClassVar[ObjectDetectionOptions] = ObjectDetectionOptions()
    options: ObjectDetectionOptions

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        self.labels = read_labels(context.folder, self.options.labels)

    def answer(self, outputs: dict[str, Array], place: Placement) -> list[dict[str, Any]] | Failure:
        import numpy as np

        options = self.options
        told = boxes.detections(outputs, options.output)
        if np.isnan(told.scores).any():
            return NOT_NUMBERS
        found = boxes.likely(told, options.threshold)
        found = found._replace(boxes=self._corners(found.boxes, detr="pred_boxes" in outputs and not options.output))
        if options.nms < 1:
            found = boxes.without_overlaps(found, options.nms)
        found = found._replace(boxes=boxes.on_the_image(found.boxes, place))
        return [self._told(*row) for row in zip(*(array[: options.max_detections] for array in found), strict=True)]

    def _corners(self, given: Array, *, detr: bool) -> Array:
        """In pixels of the model's frame."""
        import numpy as np

        options = self.options
        as_corners = boxes.corners(given) if options.boxes == "cxcywh" or (options.boxes == "auto" and detr) else given
        normalized = detr if options.normalized == "auto" else options.normalized
        return as_corners * np.array([self.frame.width, self.frame.height] * 2) if normalized else as_corners

    def _told(self, box: Array, score: Any, label: Any) -> dict[str, Any]:
        name, corners = self.labels.name(int(label)), [float(value) for value in box]
        if self.options.answer == "torchserve":
            return {name: corners, "score": float(score)}
        return {"label": name, "score": float(score), "box": dict(zip(("x1", "y1", "x2", "y2"), corners, strict=True))}
