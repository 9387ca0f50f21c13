"""The built-in handlers for images, with real TorchScript models, and handlers that subclass them as public ones do."""

from __future__ import annotations

import io
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from penstock.extensions.torchserve.child.surface.image_steps import center, imagenet_input, plain_input, scaled
from penstock.extensions.torchserve.child.surface.vision import (
    GradientPath,
    ImageClassifier,
    ImageSegmenter,
    ObjectDetector,
    VisionHandler,
    integrated_gradients,
)

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="the handlers run torch models: pip install 'penstock-inference[torch]'")
Image = pytest.importorskip("PIL.Image", reason="images need pillow: pip install 'penstock-inference[images]'")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
Make = Callable[..., Any]


class Colours(torch.nn.Module):  # type: ignore[name-defined]
    """Scores of a red, a green and a blue class: the mean of each channel."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x.mean((2, 3)) * 3


class Pixels(torch.nn.Module):  # type: ignore[name-defined]
    def forward(self, x):  # type: ignore[no-untyped-def]
        return {"out": x, "aux": x}


DETECTOR = """
    import torch
    from typing import Dict, List, Tuple
    def found(count: int) -> List[Dict[str, torch.Tensor]]:
        out = torch.jit.annotate(List[Dict[str, torch.Tensor]], [])
        for _ in range(count):
            out.append({
                "boxes": torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [0.0, 0.0, 1.0, 1.0]]),
                "labels": torch.tensor([1, 2, 0]),
                "scores": torch.tensor([0.9, 0.5, 0.4]),
            })
        return out
    class Eager(torch.nn.Module):
        def forward(self, images):
            return found(len(images))
"""
SCRIPTED = (
    DETECTOR
    + """
    class Scripted(torch.nn.Module):
        def forward(self, images: List[torch.Tensor]) -> Tuple[Dict[str, torch.Tensor], List[Dict[str, torch.Tensor]]]:
            return torch.jit.annotate(Dict[str, torch.Tensor], {}), found(len(images))
"""
)
OBJECTS = [{"cat": [1.0, 2.0, 3.0, 4.0], "score": pytest.approx(0.9)}, {"2": [5.0, 6.0, 7.0, 8.0], "score": 0.5}]


class SixClasses(torch.nn.Module):  # type: ignore[name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.by = torch.nn.Parameter(torch.arange(18.0).reshape(6, 3) / 9 - 1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return torch.tanh(x).mean((2, 3)) @ self.by.t()


# What TorchServe 0.12 with torchvision 0.28 and captum 0.9 made of `pattern`: the sum of the model's input, every 30,011th
# value of it, the answer, and the sums over the channels of an explanation of class 2.
RECORDED = {
    (401, 300): (
        32144.9112942,
        [-1.6212862, 2.0947855, -0.267507, -0.9852941, -0.7935511, 0.687930],
        [0.2238557, 0.1970730, 0.1734947, 0.1527373, 0.1344634],
        [-0.0099238, -0.0252797, -0.0265280],
    ),
    (50, 91): (
        34933.0071473,
        [-0.6109256, 1.4611696, 0.1001401, 1.6232493, -0.7586929, 0.0953378],
        [0.2231650, 0.1967496, 0.1734610, 0.1529290, 0.1348272],
        [-0.0394635, -0.0234483, -0.0171144],
    ),
    (223, 1000): (
        32302.1609394,
        [-1.6897851, 0.8275537, 0.7478992, -0.092437, 1.1410894, 1.7859696],
        [0.2202477, 0.1953726, 0.1733070, 0.1537334, 0.1363706],
        [-0.0091430, -0.0237921, -0.0250044],
    ),
}


def pattern(width: int, height: int) -> bytes:
    """An image without two equal neighbours, so that a filter or a pixel too many shows."""
    y, x = numpy.mgrid[0:height, 0:width]
    buffer = io.BytesIO()
    values = numpy.stack([(x * 7 + y * 3) % 256, (x * y) % 256, (x * x + y) % 256], -1)
    Image.fromarray(values.astype(numpy.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def picture(colour: Any = (255, 0, 0), *, mode: str = "RGB", size: tuple[int, int] = (300, 260)) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, code: str) -> None:
    path.write_text(dedent(code))


@pytest.fixture
def classifier(folder: Path, context: Make) -> ImageClassifier:
    torch.jit.script(Colours()).save(folder / "colours.pt")
    (folder / "index_to_name.json").write_text('{"0": "red", "1": "green", "2": ["n02", "blue"]}')
    handler = ImageClassifier()
    handler.initialize(context(serializedFile="colours.pt"))
    return handler


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((300, 400), (256, 341)),
        ((401, 300), (342, 256)),
        ((256, 256), (256, 256)),
        ((50, 91), (256, 465)),
        ((640, 333), (492, 256)),
    ],
)
def test_the_shorter_side_is_256_and_the_longer_one_is_cut_off(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert scaled(Image.new("RGB", size), 256).size == expected


def test_a_long_line_of_pixels_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(ValueError, match="1 x 20000 pixels: scaled to 256 it is longer than 16384"):
        imagenet_input(Image.new("RGB", (1, 20_000)))


@pytest.mark.parametrize(("size", "corner"), [((256, 257), (16, 16)), ((259, 256), (18, 16)), ((341, 256), (58, 16))])
def test_the_middle_begins_at_an_even_pixel_where_two_are_as_near(size: tuple[int, int], corner: tuple[int, int]) -> None:
    image = Image.new("RGB", size)
    image.putpixel(corner, (9, 9, 9))
    cut = center(image, 224)
    assert (cut.size, cut.getpixel((0, 0))) == ((224, 224), (9, 9, 9))


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("RGB", (255, 0, 51), (1.0, 0.0, 0.2)),
        ("L", 51, (0.2, 0.2, 0.2)),
        ("RGBA", (255, 0, 51, 9), (1.0, 0.0, 0.2)),
        ("I;16", 51 * 257, (0.2, 0.2, 0.2)),
        ("1", 1, (1.0, 1.0, 1.0)),
        ("P", 0, (0.0, 0.0, 0.0)),
    ],
)
def test_images_of_all_kinds_have_three_channels(mode: str, colour: Any, expected: tuple[float, ...]) -> None:
    image = Image.open(io.BytesIO(picture(colour, mode=mode)))
    assert plain_input(image).shape == (3, 260, 300)
    assert plain_input(image)[:, 0, 0].tolist() == pytest.approx(expected)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    wanted = [(value - off) / by for value, off, by in zip(expected, mean, std, strict=True)]
    assert imagenet_input(image)[:, 100, 100].tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("form", [bytes, bytearray, lambda data: b64encode(data).decode()])
@pytest.mark.parametrize("field", ["data", "body"])
def test_an_image_is_classified_however_it_comes(form: Any, field: str, classifier: ImageClassifier, context: Make) -> None:
    (answer,) = classifier.handle([{field: form(picture())}], context())
    # A model with three classes names three; TorchServe fails on fewer than five.
    assert list(answer) == ["red", "blue", "green"]
    assert sum(answer.values()) == pytest.approx(1)


def test_each_image_of_a_batch_is_classified(classifier: ImageClassifier, context: Make) -> None:
    classifier.set_max_result_classes(1)
    assert classifier.get_max_result_classes() == 1
    rows = [{"data": picture((0, 0, 255))}, {"data": picture((0, 255, 0), size=(50, 90))}]
    assert [[*answer] for answer in classifier.handle(rows, context())] == [["blue"], ["green"]]


def test_probabilities_are_those_of_torchserve() -> None:
    """The expected values are what TorchServe 0.12 answered to these scores."""
    handler = ImageClassifier()
    answer = handler.postprocess(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]))
    expected = [0.6336913, 0.2331220, 0.0857608, 0.0315496, 0.0116065]
    assert [*answer[0]] == ["5", "4", "3", "2", "1"]
    assert [*answer[0].values()] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("size", "has_captum"), [*zip(RECORDED, (True, False, False), strict=True)])
def test_images_are_answered_and_explained_as_by_torchserve(
    size: tuple[int, int], has_captum: bool, folder: Path, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_captum:
        monkeypatch.setitem(sys.modules, "captum.attr", None)
    torch.jit.script(SixClasses()).save(folder / "six.pt")
    handler = ImageClassifier()
    handler.initialize(context(serializedFile="six.pt"))
    total, some, probabilities, shares = RECORDED[size]
    prepared = handler.preprocess([{"data": pattern(*size)}])
    assert float(prepared.double().sum()) == pytest.approx(total, abs=0.01)
    assert prepared.flatten()[::30011].tolist() == pytest.approx(some, abs=1e-5)
    (answer,) = handler.handle([{"data": pattern(*size)}], context())
    assert [*answer] == ["5", "4", "3", "2", "1"]
    assert [*answer.values()] == pytest.approx(probabilities, abs=1e-5)
    explained = handler.handle([{"data": pattern(*size), "target": 2}], context(headers={"explain": "True"}))
    assert torch.tensor(explained).sum((0, 2, 3)).tolist() == pytest.approx(shares, abs=1e-4)


def test_numbers_are_taken_as_they_are(classifier: ImageClassifier) -> None:
    assert classifier.preprocess([{"body": [[[1, 2], [3, 4]]] * 3}]).shape == (1, 3, 2, 2)


@pytest.mark.parametrize("row", [{}, {"body": {"image": 1}}, {"body": 3}])
def test_what_is_no_image_is_named(row: Any, classifier: ImageClassifier) -> None:
    with pytest.raises(ValueError, match="an image comes as a file, as base64 or as a list"):
        classifier.preprocess([row])


def test_an_explanation_has_a_number_per_value_of_the_image(classifier: ImageClassifier, context: Make) -> None:
    rows = [{"data": picture(), "target": 1}]
    (found,) = classifier.handle(rows, context(headers={"explain": "True"}))
    # The green class depends on the green channel alone, and all of it together on its mean.
    sums = torch.tensor(found).sum((1, 2))
    assert sums.tolist() == pytest.approx([0, 3 * (0 - 0.456) / 0.224, 0], abs=1e-3)


def test_our_gradients_agree_with_captums() -> None:
    captum = pytest.importorskip("captum.attr", reason="compared with captum: pip install 'penstock-inference[explain]'")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    data = torch.randn(4, 6)
    theirs = captum.IntegratedGradients(model).attribute(data, target=2, n_steps=15)
    assert torch.allclose(GradientPath(model).attribute(data, target=2, n_steps=15), theirs.float(), atol=1e-5)
    assert isinstance(integrated_gradients(model), captum.IntegratedGradients)


def test_without_captum_ours_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    assert isinstance(integrated_gradients(torch.nn.Identity()), GradientPath)


def test_a_segmentation_has_class_and_probability_per_pixel(folder: Path, context: Make) -> None:
    torch.jit.script(Pixels()).save(folder / "pixels.pt")
    handler = ImageSegmenter()
    handler.initialize(context(serializedFile="pixels.pt"))
    first, second = handler.handle([{"data": picture()}, {"data": picture((0, 0, 255))}], context())
    assert (len(first), len(first[0])) == (224, 224)
    assert [pixel[0] for pixel in (first[0][0], second[223][223])] == [0.0, 2.0]
    scores = torch.softmax(imagenet_input(Image.open(io.BytesIO(picture())))[:, 0, 0], dim=0)
    assert first[0][0][1] == pytest.approx(float(scores[0]))


@pytest.mark.parametrize("files", [{"modelFile": "eager.py"}, {"serializedFile": "scripted.pt"}])
def test_objects_have_names_boxes_and_scores(
    files: dict[str, str], folder: Path, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "eager.py", DETECTOR)
    write(folder / "scripting.py", SCRIPTED)
    import scripting  # type: ignore[import-not-found]

    torch.jit.script(scripting.Scripted()).save(folder / "scripted.pt")
    (folder / "index_to_name.json").write_text('{"1": "cat"}')
    handler = ObjectDetector()
    handler.initialize(context(**files))
    # Images of two sizes: TorchServe cannot stack them.
    rows = [{"data": picture()}, {"data": picture(size=(40, 50))}]
    assert handler.handle(rows, context()) == [OBJECTS, OBJECTS]
    handler.threshold = 0.95
    assert handler.handle(rows[:1], context()) == [[]]


def test_the_base_of_all_has_no_processing_of_its_own() -> None:
    assert not hasattr(VisionHandler(), "image_processing")


def test_a_public_handler_subclasses_the_classifier(ts: None, folder: Path, context: Make) -> None:
    torch.jit.script(Colours()).save(folder / "colours.pt")
    write(
        folder / "own_classifier.py",
        """
        from ts.torch_handler.image_classifier import ImageClassifier

        class OwnClassifier(ImageClassifier):
            topk = 2

            def initialize(self, context):
                super().initialize(context)
                self.folder = context.system_properties.get("model_dir")

            def preprocess(self, data):
                return super().preprocess([{"body": row["image"]} for row in data])

            def postprocess(self, data):
                return [{"classes": list(answer)} for answer in super().postprocess(data)]
        """,
    )
    import own_classifier  # type: ignore[import-not-found]

    handler = own_classifier.OwnClassifier()
    handler.initialize(context(serializedFile="colours.pt"))
    assert handler.handle([{"image": picture()}], context()) == [{"classes": ["0", "2"]}]


def test_a_public_handler_has_an_image_processing_of_its_own(ts: None, folder: Path, context: Make) -> None:
    """As the best known handler for digits has, with torchvision's steps; grey images reach it as they are."""
    torch.jit.script(Colours()).save(folder / "colours.pt")
    write(
        folder / "own_vision.py",
        """
        import numpy
        import torch
        from ts.torch_handler.vision_handler import VisionHandler

        def steps(image):
            assert image.mode == "L"
            return torch.from_numpy(numpy.array(image)).float().div(255).expand(3, -1, -1)

        class OwnVision(VisionHandler):
            image_processing = staticmethod(steps)

            def postprocess(self, data):
                return data.argmax(1).tolist()
        """,
    )
    import own_vision  # type: ignore[import-not-found]

    handler = own_vision.OwnVision()
    handler.initialize(context(serializedFile="colours.pt"))
    assert handler.handle([{"body": picture(9, mode="L")}] * 2, context()) == [0, 0]
