from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from PIL import Image

from penstock.errors import HandlerContractError, HandlerLoadError
from penstock.handlers.load import load
from penstock.model_spec import RuntimeOptions
from penstock.workers.child import warmup
from tests.unit.handlers.tasks.models import PLAIN, answering, ask, mean_colour, opened, picture, plain, same
from tests.unit.handlers.tasks.test_images import header_only_png

TASK = "image-classification"


def test_the_best_classes_are_named_best_first(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    model = opened(mean_colour(tmp_path), TASK, labels="names.txt", top_k=2, **PLAIN)
    (answer,) = ask(model, plain((0, 255, 51)))
    assert list(answer) == ["green", "blue"]
    powers = np.exp(np.array([0.0, 10.0, 2.0]))
    assert answer["green"] == pytest.approx(powers[1] / powers.sum(), abs=1e-6)


def test_json_forms_and_raw_bytes_give_one_answer(tmp_path: Path) -> None:
    model = opened(mean_colour(tmp_path), TASK)
    data = plain((255, 0, 0))
    text = base64.b64encode(data).decode()
    answers = ask(model, data, {"image": text}, f"data:image/png;base64,{text}")
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bad_image_fails_alone(tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The digits example raises this limit for its process, and its tests may have run in this process.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 89_478_485)
    model = opened(mean_colour(tmp_path), TASK, threads=threads, top_k=1)
    answers = ask(model, plain((255, 0, 0)), b"no image", header_only_png(60_000, 60_000), plain((0, 0, 255)), {"image": "?"})
    assert [list(answers[place]) for place in (0, 3)] == [["0"], ["2"]]
    assert {answers[place].code for place in (1, 2, 4)} == {"invalid_input"}
    # Regression: Pillow refused 3.6 gigapixels first, and the caller read Pillow's limit, 178,956,970.
    assert answers[2].message == "the image has more pixels than the limit of 50000000"


@pytest.mark.parametrize("batch", ["n", 1])
def test_calls_in_parallel_answer_every_image_in_its_place(tmp_path: Path, batch: Any) -> None:
    path = mean_colour(tmp_path, (batch, 3, 96, 96))
    model = opened(path, TASK, threads=2, **PLAIN)
    handler: Any = model.handler
    assert handler.calls_at_once == 2
    colours = [(25 * n, 255 - 25 * n, 9 * n) for n in range(8)]
    together = ask(model, *map(plain, colours))
    alone = opened(path, TASK, threads=2, parallel_calls=False, **PLAIN)
    for colour, found in zip(colours, together, strict=True):
        assert found == pytest.approx(ask(alone, plain(colour))[0], abs=1e-6)


def test_small_images_and_padded_batches_are_one_call_each(tmp_path: Path) -> None:
    small: Any = opened(mean_colour(tmp_path), TASK, threads=2).handler
    runtime = RuntimeOptions(batch_buckets=(4,))
    padded: Any = load(
        str(mean_colour(tmp_path, ("n", 3, 96, 96))), "model", task=TASK, threads=2, options={}, runtime=runtime
    ).handler
    assert [small.calls_at_once, padded.calls_at_once] == [1, 1]


def test_the_frame_follows_the_models_input(tmp_path: Path) -> None:
    handler: Any = opened(mean_colour(tmp_path, ("n", 3, 6, 10)), TASK).handler
    assert (handler.frame.width, handler.frame.height, handler.channels_last) == (10, 6, False)
    handler = opened(mean_colour(tmp_path, ("n", 6, 10, 3)), TASK).handler
    assert (handler.frame.width, handler.frame.height, handler.channels_last) == (10, 6, True)
    handler = opened(mean_colour(tmp_path, ("n", 3, "h", "w")), TASK).handler
    assert (handler.frame.width, handler.frame.height) == (224, 224)
    handler = opened(mean_colour(tmp_path, ("n", 3, "h", "w")), TASK, size=[4, 8]).handler
    assert (handler.frame.width, handler.frame.height) == (8, 4)


def test_a_grey_model_gets_grey_pixels_from_0_to_1(tmp_path: Path) -> None:
    model = opened(mean_colour(tmp_path, ("n", 1, 4, 4)), TASK, activation="none")
    assert ask(model, picture(np.full((4, 4), 51)))[0] == {"0": pytest.approx(2.0)}


def test_a_model_of_bytes_gets_the_pixels_as_they_are(tmp_path: Path) -> None:
    model = opened(mean_colour(tmp_path, ("n", 4, 4, 3), TensorProto.UINT8), TASK, activation="none", top_k=1)
    assert ask(model, plain((7, 200, 9)))[0] == {"1": pytest.approx(2000.0)}


def test_rgb_is_normalised_as_for_imagenet_unless_options_say_otherwise(tmp_path: Path) -> None:
    model = opened(mean_colour(tmp_path), TASK, activation="none")
    wanted = (np.array([1.0, 0.0, 0.0]) - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225] * 10
    assert ask(model, plain((255, 0, 0)))[0] == {str(at): pytest.approx(wanted[at], rel=1e-5) for at in range(3)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"topk": 3},
            r"image-classification has no option 'topk' \(did you mean top_k\?\); its options are activation, crop_.*top_k",
        ),
        ({"top_k": 0}, r"option top_k of image-classification: Expected `int` >= 1"),
        (
            {"fit": "wrong"},
            r"option fit of image-classification: Invalid enum value 'wrong'; it takes crop, letterbox, stretch$",
        ),
        ({"mode": "grey"}, r"Invalid enum value 'grey'; it takes RGB, L, auto$"),
        ({"formats": ["TIFF"]}, r"option formats.0 .*: Invalid enum value 'TIFF'; it takes JPEG, PNG, WEBP, GIF, BMP$"),
        ({"formats": []}, r"^image-classification: option formats is empty; name at least one of JPEG, PNG, WEBP, GIF, BMP$"),
        ({"size": 8}, r"option size asks for 8, but the model's input image takes 4"),
        ({"mode": "L"}, r"has 3 channels; mode L cannot fill them"),
        ({"mean": [0.5, 0.5]}, r"mean and std have 2 and 3 values"),
        ({"std": [0.0]}, r"option std.* of image-classification: Expected `float` > 0"),
        ({"size": [0, 0]}, r"^image-classification: option size must be at least 1$"),
        ({"output": "nothing"}, r"the model has no output 'nothing'; it has scores"),
        ({"max_pixels": 10**9}, r"option max_pixels"),
    ],
)
def test_an_option_that_cannot_be_used_is_an_error_at_load(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        opened(mean_colour(tmp_path), TASK, **options)


def test_a_subclass_sets_its_own_defaults(tmp_path: Path) -> None:
    mean_colour(tmp_path)
    (tmp_path / "handler.py").write_text(
        "from penstock.handlers.tasks.image_classification import ImageClassification, ImageClassificationOptions\n"
        "class Colour(ImageClassification):\n"
        "    model_file = 'colour.onnx'\n"
        "    defaults = ImageClassificationOptions(top_k=1, mean=(0.0,), std=(1.0,))\n"
    )
    model = load(str(tmp_path / "handler.py"), "colour")
    assert list(ask(model, plain((0, 0, 255)))[0]) == ["2"]
    model = load(str(tmp_path / "handler.py"), "colour", options={"top_k": 3})
    assert len(ask(model, plain((0, 0, 255)))[0]) == 3


def test_the_model_is_warmed_up_on_a_blank_image_and_says_what_it_takes(tmp_path: Path) -> None:
    model = opened(mean_colour(tmp_path), TASK)
    assert [run.size for run in warmup.warm_up(model, [1, 2], budget_s=60).runs] == [1, 2]
    assert "image/*" in model.accepts
    assert model.output_schema == {"type": "object", "additionalProperties": {"type": "number"}}
    assert model.info().description.startswith("Classifies an image")


def test_an_output_that_is_a_map_and_no_score_per_class_stops_the_load(tmp_path: Path) -> None:
    # Regression: the output [3, 4, 4] of a segmentation model was read as 48 classes and answered with 200.
    model = opened(same(tmp_path), TASK)
    with pytest.raises(HandlerContractError, match=r"reads one score per class, \[classes\]; .* has shape \[3, 4, 4\] per"):
        warmup.warm_up(model, [1], budget_s=60)
    assert ask(model, plain((0, 0, 0)))[0].code == "handler_contract"


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 1, 3), (3,)])
def test_scores_of_a_last_convolution_are_taken_whatever_axes_of_one_they_have(tmp_path: Path, shape: tuple[int, ...]) -> None:
    scores = np.array([0.0, 5.0, 1.0], np.float32).reshape(shape)
    model = opened(answering(tmp_path, {"scores": scores}), TASK, activation="none")
    assert ask(model, plain((0, 0, 0))) == [{"1": 5.0, "2": 1.0, "0": 0.0}]


def test_a_model_that_takes_no_image_is_refused_before_the_first_call(tmp_path: Path) -> None:
    # Regression: the warm-up failed with the runtime's message "Unexpected number of dimensions in input at *args[0].shape".
    with pytest.raises(HandlerLoadError, match=r"input image takes \[3, any\]; image-classification fills it with an image"):
        opened(same(tmp_path, ("n", 3, "length")), TASK)


def test_a_model_that_takes_smaller_images_than_its_frame_gets_ready(tmp_path: Path) -> None:
    # Regression: the blank image of the warm-up was as large as the frame and therefore refused, so such a model never loaded.
    model = opened(mean_colour(tmp_path), TASK, max_pixels=15)
    assert [run.size for run in warmup.warm_up(model, [1, 2], budget_s=60).runs] == [1, 2]
    assert ask(model, plain((0, 0, 0), 5, 3))[0].keys() == {"0", "1", "2"}


def test_a_task_goes_with_model_files_only(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("import penstock\n@penstock.model\ndef f(x): return x\n")
    with pytest.raises(HandlerLoadError, match="goes with a model file"):
        opened(tmp_path / "handler.py", TASK)
    with pytest.raises(HandlerLoadError, match="there is no task 'image-sorting'; the tasks are image-classification"):
        opened(same(tmp_path), "image-sorting")
