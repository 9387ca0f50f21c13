"""Boxes as arrays: the models' conventions, overlap, and pixels of the image. A box is x1, y1, x2, y2. Pure numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import HandlerContractError
from penstock.handlers.tasks.images import FrameTransform
from penstock.handlers.tasks.labels import activated

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# Overlap is compared pair by pair, so the cost grows with the square. Boxes beyond the best 2,000 are noise.
_MAX_CANDIDATES = 2_000


class Detections(NamedTuple):
    """The objects of one image: `boxes` float [N, 4], `scores` float [N], `labels` int [N]."""

    boxes: Array
    scores: Array
    labels: Array

    def select(self, rows: Array) -> Detections:
        return Detections(self.boxes[rows], self.scores[rows], self.labels[rows])


def detections(outputs: dict[str, Array], wanted: str = "") -> Detections:
    """The objects that a model objects in one image. Raises `HandlerContractError` unless it follows one of three conventions:

    `boxes`, `scores` and `labels` (torchvision); `pred_boxes` and `logits`, whose last class means "no object" (DETR); or one
    array [N, 6] of x1, y1, x2, y2, score, label. `wanted` names the output that holds such an array.
    """
    import numpy as np

    if not wanted and {"boxes", "scores", "labels"} <= outputs.keys():
        objects = Detections(outputs["boxes"], outputs["scores"], outputs["labels"])
    elif not wanted and {"pred_boxes", "logits"} <= outputs.keys():
        probabilities = activated(outputs["logits"], "softmax")[..., :-1]
        objects = Detections(outputs["pred_boxes"], probabilities.max(axis=-1), probabilities.argmax(axis=-1))
    else:
        rows = outputs[wanted] if wanted else next(iter(outputs.values()))
        if rows.ndim != 2 or rows.shape[-1] != 6:
            raise HandlerContractError(_unknown(outputs))
        objects = Detections(rows[:, :4], rows[:, 4], rows[:, 5])
    same_length = objects.scores.shape == objects.labels.shape == objects.boxes.shape[:1]
    if objects.boxes.ndim != 2 or objects.boxes.shape[-1] != 4 or not same_length:
        raise HandlerContractError(_unknown(outputs))
    # NaN labels come with NaN scores, and the caller fails the image on those.
    with np.errstate(invalid="ignore"):
        return Detections(objects.boxes.astype(np.float64), objects.scores.astype(np.float64), objects.labels.astype(np.int64))


def corners(boxes: Array) -> Array:
    """The corners of boxes that have a centre and a size."""
    import numpy as np

    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def above_threshold(objects: Detections, threshold: float) -> Detections:
    """The boxes with at least the threshold as score, best first. Boxes without finite corners are dropped."""
    import numpy as np

    kept = np.flatnonzero((objects.scores >= threshold) & np.isfinite(objects.boxes).all(axis=1))
    order = kept[(-objects.scores[kept]).argsort(kind="stable")]
    return objects.select(order[:_MAX_CANDIDATES])


def without_overlaps(objects: Detections, max_overlap: float) -> Detections:
    """The best of all boxes of one class that overlap more than `max_overlap`. `objects` is best first."""
    import numpy as np

    kept: list[int] = []
    rest = np.arange(len(objects.scores))
    while rest.size:
        first, rest = int(rest[0]), rest[1:]
        kept.append(first)
        same_class = objects.labels[rest] == objects.labels[first]
        rest = rest[~(same_class & (overlap(objects.boxes[first], objects.boxes[rest]) > max_overlap))]
    return objects.select(np.array(kept, dtype=np.int64))


def overlap(box: Array, others: Array) -> Array:
    """Intersection over union of one box with each of the others."""
    import numpy as np

    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = (high - low).clip(0).prod(axis=1)
    union = _area(box[None]) + _area(others) - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


def in_image_pixels(boxes: Array, transform: FrameTransform) -> Array:
    """The boxes in pixels of the image as sent, instead of the model's, cut at the image's edges."""
    import numpy as np

    offset = np.array([transform.left, transform.top] * 2)
    scale = np.array([transform.scale_x, transform.scale_y] * 2)
    return np.asarray(((boxes - offset) / scale).clip(0, np.array([transform.width, transform.height] * 2)))


def _area(boxes: Array) -> Array:
    area: Array = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1)
    return area


def _unknown(outputs: dict[str, Array]) -> str:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
    return f"object detection reads boxes, scores and labels, pred_boxes and logits, or one [N, 6]; the model answered {shapes}"
