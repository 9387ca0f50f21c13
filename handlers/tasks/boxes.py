"""Boxes as numbers: the models' conventions, overlap, the way back to the image. A box is x1, y1, x2, y2. Pure numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import HandlerContractError
from penstock.handlers.tasks.images import Placement
from penstock.handlers.tasks.labels import activated

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# Overlap is compared pair by pair, so its cost grows with the square; what scores lower than the best 2,000 is noise.
_MOST_CANDIDATES = 2_000


class Detections(NamedTuple):
    """Rows of one image: `boxes` float [N, 4], `scores` float [N], `labels` int [N]."""

    boxes: Array
    scores: Array
    labels: Array

    def only(self, places: Array) -> Detections:
        return Detections(self.boxes[places], self.scores[places], self.labels[places])


def detections(outputs: dict[str, Array], wish: str = "") -> Detections:
    """What a model found in one image, by any of three conventions; raises `HandlerContractError` for others.

    `boxes`, `scores` and `labels` (torchvision); `pred_boxes` and `logits`, the last class meaning nothing (DETR); or one array
    [N, 6] of x1, y1, x2, y2, score, label.
    """
    import numpy as np

    if not wish and {"boxes", "scores", "labels"} <= outputs.keys():
        found = Detections(outputs["boxes"], outputs["scores"], outputs["labels"])
    elif not wish and {"pred_boxes", "logits"} <= outputs.keys():
        chances = activated(outputs["logits"], "softmax")[..., :-1]
        found = Detections(outputs["pred_boxes"], chances.max(axis=-1), chances.argmax(axis=-1))
    else:
        rows = outputs[wish] if wish else next(iter(outputs.values()))
        if rows.ndim != 2 or rows.shape[-1] != 6:
            raise HandlerContractError(_unknown(outputs))
        found = Detections(rows[:, :4], rows[:, 4], rows[:, 5])
    one_each = found.scores.shape == found.labels.shape == found.boxes.shape[:1]
    if found.boxes.ndim != 2 or found.boxes.shape[-1] != 4 or not one_each:
        raise HandlerContractError(_unknown(outputs))
    # Labels that are NaN come with scores that are, and these fail the image.
    with np.errstate(invalid="ignore"):
        return Detections(found.boxes.astype(np.float64), found.scores.astype(np.float64), found.labels.astype(np.int64))


def corners(boxes: Array) -> Array:
    """Corners of boxes given as centre and size."""
    import numpy as np

    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def likely(found: Detections, threshold: float) -> Detections:
    """Those at or over the threshold, best first; a box without finite corners is none."""
    import numpy as np

    kept = np.flatnonzero((found.scores >= threshold) & np.isfinite(found.boxes).all(axis=1))
    order = kept[(-found.scores[kept]).argsort(kind="stable")]
    return found.only(order[:_MOST_CANDIDATES])


def without_overlaps(found: Detections, most_overlap: float) -> Detections:
    """Of boxes of one class that overlap more than `most_overlap`, the best. `found` is best first."""
    import numpy as np

    kept: list[int] = []
    rest = np.arange(len(found.scores))
    while rest.size:
        first, rest = int(rest[0]), rest[1:]
        kept.append(first)
        same = found.labels[rest] == found.labels[first]
        rest = rest[~(same & (overlap(found.boxes[first], found.boxes[rest]) > most_overlap))]
    return found.only(np.array(kept, dtype=np.int64))


def overlap(box: Array, others: Array) -> Array:
    """Intersection over union of one box with each of the others."""
    import numpy as np

    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = (high - low).clip(0).prod(axis=1)
    union = _area(box[None]) + _area(others) - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


def on_the_image(boxes: Array, place: Placement) -> Array:
    """From the model's pixels to those of the image as sent, cut at its edges."""
    import numpy as np

    offset = np.array([place.left, place.top] * 2)
    scale = np.array([place.scale_x, place.scale_y] * 2)
    return np.asarray(((boxes - offset) / scale).clip(0, np.array([place.width, place.height] * 2)))


def _area(boxes: Array) -> Array:
    area: Array = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1)
    return area


def _unknown(outputs: dict[str, Array]) -> str:
    given = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
    return f"object detection reads boxes, scores and labels, pred_boxes and logits, or one [N, 6]; the model answered {given}"
