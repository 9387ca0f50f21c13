from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.errors import HandlerLoadError
from tests.unit.handlers.tasks.models import PLAIN, answering, ask, opened, picture, same
from tests.unit.handlers.tasks.test_images import BLUE, GREEN, RED, stripes

TASK = "segmentation"


def mask_of(png: bytes) -> Any:
    with Image.open(io.BytesIO(png)) as image:
        assert image.mode == "P"
        return np.asarray(image)


def test_every_pixel_gets_its_class_and_every_class_its_share(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    model = opened(same(tmp_path), TASK, labels="names.txt", mask="list", **PLAIN)
    (answer,) = ask(model, picture(stripes(RED, RED, RED, BLUE, wide=2)))
    assert (answer["width"], answer["height"]) == (8, 8)
    assert answer["mask"] == [[0] * 6 + [2] * 2] * 8
    assert answer["classes"] == [{"id": 0, "label": "red", "share": 0.75}, {"id": 2, "label": "blue", "share": 0.25}]


def test_the_mask_is_a_palette_png_whose_values_are_the_classes(tmp_path: Path) -> None:
    data = picture(stripes(RED, BLUE))
    (inside,) = ask(opened(same(tmp_path), TASK, **PLAIN), data)
    (alone,) = ask(opened(same(tmp_path), TASK, mask="png", **PLAIN), data)
    assert base64.b64decode(inside["mask"]) == alone
    assert (mask_of(alone) == np.repeat([[0] * 8 + [2] * 8], 8, axis=0)).all()
    with Image.open(io.BytesIO(alone)) as image:
        assert image.getpalette()[:9] == [0, 0, 0, 128, 0, 0, 0, 128, 0]  # type: ignore[index]


def test_the_mask_may_stay_as_the_model_sees_it(tmp_path: Path) -> None:
    (answer,) = ask(opened(same(tmp_path), TASK, mask="list", original_size=False, **PLAIN), picture(stripes(RED, BLUE)))
    assert answer["mask"] == [[0, 0, 2, 2]] * 4


def test_what_lies_beside_a_letterboxed_image_is_left_out(tmp_path: Path) -> None:
    model = opened(same(tmp_path, ("n", 3, 8, 8)), TASK, fit="letterbox", mask="list", **PLAIN)
    (answer,) = ask(model, picture(stripes(GREEN, BLUE, wide=8, high=8)))
    assert answer["mask"] == [[1] * 8 + [2] * 8] * 8


def test_torchserves_shape_is_class_and_probability_per_pixel(tmp_path: Path) -> None:
    (answer,) = ask(opened(same(tmp_path), TASK, mask="pairs", **PLAIN), picture(stripes(BLUE, wide=4, high=4)))
    top = float(np.e / (np.e + 2))
    assert np.array(answer).shape == (4, 4, 2)
    assert answer[0][0] == [2, pytest.approx(top, abs=1e-6)]


@pytest.mark.parametrize("shape", [(1, 2, 2), (2, 2)])
def test_a_model_of_one_class_is_cut_at_the_threshold(tmp_path: Path, shape: tuple[int, ...]) -> None:
    logits = np.array([-3.0, 3.0, 0.5, -0.5]).reshape(shape)
    model = opened(answering(tmp_path, {"out": logits}), TASK, mask="list", original_size=False, threshold=0.7)
    assert ask(model, picture(stripes(RED)))[0]["mask"] == [[0, 1], [0, 0]]


def test_a_model_may_answer_with_the_classes_themselves(tmp_path: Path) -> None:
    ids = np.array([[0, 300], [2, 2]], dtype=np.int64)
    path = answering(tmp_path, {"out": ids})
    assert ask(opened(path, TASK, mask="list", original_size=False), picture(stripes(RED)))[0]["mask"] == ids.tolist()
    assert ask(opened(path, TASK), picture(stripes(RED)))[0].code == "handler_contract"


@pytest.mark.parametrize("shape", [(3, 2, 2), (1, 2, 2), (2, 2)])
def test_scores_that_are_nan_fail_their_image_and_are_no_mask(tmp_path: Path, shape: tuple[int, ...]) -> None:
    # Regression: argmax of NaN is class 0, and NaN is below every threshold, so the answer was a mask of background with 200.
    scores = np.zeros(shape, np.float32)
    scores[..., 1, 0] = np.nan
    (answer,) = ask(opened(answering(tmp_path, {"out": scores}), TASK), picture(stripes(RED)))
    assert answer.code == "handler_contract"
    assert answer.message.startswith("the model answered NaN instead of scores")


def test_a_mask_of_bools_is_taken_as_it_is(tmp_path: Path) -> None:
    # Regression: the mask was read as logits, so False became 0.5 and therefore class 1, on the whole image.
    mask = np.array([[False, True], [False, False]])
    for threshold in (0.2, 0.5, 0.9):
        model = opened(answering(tmp_path, {"out": mask}), TASK, mask="list", original_size=False, threshold=threshold)
        (answer,) = ask(model, picture(stripes(RED)))
        assert answer["mask"] == [[0, 1], [0, 0]]
        assert [found["id"] for found in answer["classes"]] == [0, 1]


def test_a_mask_too_large_for_a_list_fails_its_image_only(tmp_path: Path) -> None:
    model = opened(same(tmp_path), TASK, mask="list", **PLAIN)
    large, small = ask(model, picture(np.zeros((2001, 2000))), picture(stripes(RED)))
    assert (large.code, small["width"]) == ("invalid_input", 8)


def test_cutting_the_rim_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandlerLoadError, match="set fit to stretch or letterbox"):
        opened(same(tmp_path), TASK, fit="crop")
