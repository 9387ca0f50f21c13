from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.handlers.tasks.boxes import Detections, above_threshold, in_image_pixels, overlap, without_overlaps
from penstock.handlers.tasks.images import FrameTransform
from tests.unit.handlers.tasks.models import answering, ask, opened, picture

TASK = "object-detection"
# The boxes lie in a frame of 8 x 8: two on one object, one of another class at the same place, and one elsewhere.
BOXES = np.array([[1, 1, 4, 4], [1, 1, 4, 5], [1, 1, 4, 4], [5, 5, 8, 8]], dtype=np.float32)
SCORES = np.array([0.8, 0.9, 0.7, 0.6], dtype=np.float32)
LABELS = np.array([1, 1, 2, 1], dtype=np.int64)
FRAME = ("n", 3, 8, 8)


def image(width: int = 8, height: int = 8) -> bytes:
    return picture(np.zeros((height, width, 3)))


def boxes_of(answer: list[dict[str, Any]]) -> list[list[float]]:
    return [list(found["box"].values()) for found in answer]


def test_boxes_scores_and_labels_become_named_boxes_best_first(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("none\ncat\ndog\n")
    path = answering(tmp_path, {"boxes": BOXES, "scores": SCORES, "labels": LABELS}, FRAME)
    (answer,) = ask(opened(path, TASK, labels="names.txt"), image())
    assert [found["label"] for found in answer] == ["cat", "dog", "cat"]
    assert [found["score"] for found in answer] == pytest.approx([0.9, 0.7, 0.6])
    assert answer[0]["box"] == {"x1": 1, "y1": 1, "x2": 4, "y2": 5}


def test_one_array_of_six_columns_says_the_same(tmp_path: Path) -> None:
    rows = np.concatenate([BOXES, SCORES[:, None], LABELS[:, None]], axis=1).astype(np.float32)
    split = answering(tmp_path, {"boxes": BOXES, "scores": SCORES, "labels": LABELS}, FRAME)
    (wanted,) = ask(opened(split, TASK), image())
    (answer,) = ask(opened(answering(tmp_path, {"rows": rows}, FRAME), TASK), image())
    assert answer == wanted
    assert len(answer) == 3


def test_centres_and_sizes_from_0_to_1_beside_logits_are_read_as_detr_writes_them(tmp_path: Path) -> None:
    outputs = {
        "pred_boxes": np.array([[0.5, 0.5, 0.25, 0.5], [0.5, 0.5, 1, 1]], dtype=np.float32),
        # There are three classes; the last one means that there is no object.
        "logits": np.array([[0, 9, 0], [0, 0, 9]], dtype=np.float32),
    }
    (answer,) = ask(opened(answering(tmp_path, outputs, FRAME), TASK), image())
    assert [found["label"] for found in answer] == ["1"]
    assert boxes_of(answer) == [[3, 2, 5, 6]]


def test_boxes_come_back_in_pixels_of_the_image_as_sent(tmp_path: Path) -> None:
    # An image of 16 x 8 in a frame of 8 x 8 has half its size, with two rows of grey above and below.
    path = answering(tmp_path, {"boxes": np.array([[1, 3, 7, 9]], dtype=np.float32), "scores": [0.9], "labels": [0]}, FRAME)
    (answer,) = ask(opened(path, TASK), image(16, 8))
    assert boxes_of(answer) == [[2, 2, 14, 8]]


@pytest.mark.parametrize("fit", ["crop", "letterbox", "stretch"])
def test_the_way_back_is_the_inverse_of_the_way_there(tmp_path: Path, fit: str) -> None:
    path = answering(tmp_path, {"boxes": BOXES, "scores": SCORES, "labels": LABELS}, FRAME)
    handler: Any = opened(path, TASK, fit=fit).handler
    transform = handler.preprocess([image(40, 20)])[0].transform
    there = np.array([[12.0, 6.0, 20.0, 14.0]])
    inside = there * np.array([transform.scale_x, transform.scale_y] * 2) + np.array([transform.left, transform.top] * 2)
    assert in_image_pixels(inside, transform) == pytest.approx(there)


def test_torchserves_shape_has_the_label_as_key(tmp_path: Path) -> None:
    path = answering(tmp_path, {"boxes": BOXES[3:], "scores": SCORES[3:], "labels": LABELS[3:]}, FRAME)
    (answer,) = ask(opened(path, TASK, answer="by_label"), image())
    assert answer == [{"1": [5, 5, 8, 8], "score": pytest.approx(0.6)}]


def test_threshold_overlap_and_number_are_options(tmp_path: Path) -> None:
    path = answering(tmp_path, {"boxes": BOXES, "scores": SCORES, "labels": LABELS}, FRAME)
    counts = [
        len(ask(opened(path, TASK, **options), image())[0])
        for options in ({"threshold": 0.75}, {"nms": 1.0}, {"max_detections": 2}, {"threshold": 0.95})
    ]
    assert counts == [1, 4, 2, 0]


def test_an_output_that_is_no_boxes_is_named(tmp_path: Path) -> None:
    path = answering(tmp_path, {"out": np.zeros((4, 5), dtype=np.float32)}, FRAME)
    (answer,) = ask(opened(path, TASK), image())
    assert answer.code == "handler_contract"
    assert "the model answered out [4, 5]" in answer.message


def test_scores_and_labels_that_are_not_one_per_box_are_named(tmp_path: Path) -> None:
    path = answering(tmp_path, {"boxes": BOXES, "scores": SCORES[:, None], "labels": LABELS}, FRAME)
    (answer,) = ask(opened(path, TASK), image())
    assert answer.code == "handler_contract"
    assert f"scores [{len(SCORES)}, 1]" in answer.message


def test_a_box_without_finite_corners_is_no_detection() -> None:
    boxes = np.array([[0, 0, np.nan, 1], [0, 0, np.inf, 1], [0, 0, 1, 1]])
    found = above_threshold(Detections(boxes, np.array([0.9, 0.7, 0.5]), np.array([0, 0, 0])), 0.1)
    assert found.scores.tolist() == [0.5]


@pytest.mark.parametrize("outputs", [("boxes", "scores", "labels"), ("pred_boxes", "logits"), ("rows",)])
def test_scores_that_are_nan_fail_their_image_and_are_not_an_empty_list(tmp_path: Path, outputs: tuple[str, ...]) -> None:
    # Regression: NaN is below every threshold, so a broken model answered with no objects and 200.
    nan: dict[str, Any] = {
        "boxes": BOXES,
        "scores": np.full(len(SCORES), np.nan, np.float32),
        "labels": LABELS,
        "pred_boxes": BOXES,
        "logits": np.full((len(BOXES), 3), np.nan, np.float32),
        "rows": np.full((4, 6), np.nan, np.float32),
    }
    path = answering(tmp_path, {name: nan[name] for name in outputs}, FRAME)
    (answer,) = ask(opened(path, TASK), image())
    assert answer.code == "handler_contract"
    assert "NaN" in answer.message


def test_overlap_is_intersection_over_union_also_for_empty_boxes() -> None:
    box = np.array([0.0, 0.0, 2.0, 2.0])
    others = np.array([[1.0, 1.0, 3.0, 3.0], [0.0, 0.0, 2.0, 2.0], [5.0, 5.0, 6.0, 6.0], [2.0, 2.0, 1.0, 1.0]])
    assert overlap(box, others).tolist() == pytest.approx([1 / 7, 1, 0, 0])
    assert overlap(np.zeros(4), np.zeros((1, 4))).tolist() == [0]


def test_nothing_found_is_an_empty_list() -> None:
    none = Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, dtype=np.int64))
    assert without_overlaps(none, 0.5).scores.tolist() == []
    assert in_image_pixels(none.boxes, FrameTransform(4, 4)).shape == (0, 4)
