"""The built-in handlers for images: `vision_handler`, `image_classifier`, `image_segmenter`, `object_detector` of `ts`."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

from penstock.extensions.torchserve.child.surface.base_handler import BaseHandler
from penstock.extensions.torchserve.child.surface.image_steps import imagenet_input, opened, plain_input
from penstock.extensions.torchserve.child.surface.lookups import map_class_to_label
from penstock.extensions.torchserve.child.surface.timing import timed

# As in TorchServe: the number of images between a black one and the image.
_STEPS = 15


class VisionHandler(BaseHandler):
    """Turns the images of a batch into one tensor. A subclass has `image_processing`, which takes an image of Pillow."""

    image_processing: ClassVar[Any]

    @cached_property
    def ig(self) -> Any:
        """What `get_insights` asks for attributions."""
        return integrated_gradients(self.model)

    @timed
    def preprocess(self, data: Any) -> Any:
        """A tensor [items, channels, height, width] of the rows' `data` or `body`: files, base64, or lists of numbers."""
        import torch

        return torch.stack([self._tensor(row) for row in data]).to(self.device)

    def _tensor(self, row: Any) -> Any:
        import torch

        value = row.get("data") or row.get("body")
        if isinstance(value, list):
            return torch.tensor(value, dtype=torch.float32)
        image = opened(value)
        if not hasattr(image, "convert"):
            raise ValueError(f"an image comes as a file, as base64 or as a list of numbers, not as {type(image).__name__}")
        return self.image_processing(image)

    def get_insights(self, tensor_data: Any, raw_data: Any, target: Any = 0) -> Any:
        """Per image, how much each of its values adds to the score of the class `target`."""
        return self.ig.attribute(tensor_data, target=target, n_steps=_STEPS).tolist()


class ImageClassifier(VisionHandler):
    """Per image the probabilities of its `topk` best classes, by name."""

    topk = 5
    image_processing: ClassVar[Any] = staticmethod(imagenet_input)

    def set_max_result_classes(self, topk: int) -> None:
        self.topk = topk

    def get_max_result_classes(self) -> int:
        return self.topk

    @timed
    def postprocess(self, data: Any) -> Any:
        import torch

        probabilities = torch.softmax(data, dim=1)
        # TorchServe fails where a model has fewer classes than it should name.
        best, classes = torch.topk(probabilities, min(self.topk, probabilities.shape[1]), dim=1)
        return map_class_to_label(best.tolist(), self.mapping, classes.tolist())


class ImageSegmenter(VisionHandler):
    """Per image its pixels [height, width, 2]: the id of the class, and its probability."""

    image_processing: ClassVar[Any] = staticmethod(imagenet_input)

    @timed
    def postprocess(self, data: Any) -> Any:
        """`data` is a mapping with the scores [items, classes, height, width] as `out`, or the scores themselves."""
        import torch

        scores = data["out"] if isinstance(data, dict) else data
        probability, classes = torch.softmax(scores, dim=1).max(dim=1)
        return torch.stack([classes.to(probability.dtype), probability], dim=3).tolist()


class ObjectDetector(VisionHandler):
    """Per image its objects with a score of at least `threshold`: `{name: [x1, y1, x2, y2], "score": score}`."""

    threshold = 0.5
    image_processing: ClassVar[Any] = staticmethod(plain_input)

    @timed
    def preprocess(self, data: Any) -> Any:
        """A tensor of all images, or a list of tensors if the images differ in size or the model wants a list."""
        import torch

        images = [self._tensor(row).to(self.device) for row in data]
        alike = len({image.shape for image in images}) == 1
        return torch.stack(images) if alike and not _takes_list(self.model) else images

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        if not isinstance(data, list):
            return super().inference(data, *args, **kwargs)
        with torch.inference_mode():
            return self.model(data, *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> Any:
        # A detector of torchvision that was scripted answers with its losses, too.
        objects = data[1] if isinstance(data, tuple) else data
        return [self._objects(one) for one in objects]

    def _objects(self, objects: Any) -> list[dict[str, Any]]:
        names = self.mapping or {}
        columns = (objects[name].tolist() for name in ("boxes", "labels", "scores"))
        return [
            {names.get(str(label), str(label)): box, "score": score}
            for box, label, score in zip(*columns, strict=True)
            if score >= self.threshold
        ]


def _takes_list(model: Any) -> bool:
    """Whether a scripted model is declared with a list of tensors as its input."""
    schema = getattr(getattr(model, "forward", None), "schema", None)
    inputs = schema.arguments[1:] if schema is not None else []
    return bool(inputs) and str(inputs[0].type).startswith("List[")


class GradientPath:
    """Stands for `captum.attr.IntegratedGradients` (arXiv:1703.01365), with the arguments that handlers use."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def attribute(self, inputs: Any, baselines: Any = 0, target: Any = 0, *, n_steps: int = 50) -> Any:
        """A tensor like `inputs`: gradients of the score on the way from `baselines`, by Gauss and Legendre's rule.

        One step runs at a time, so that memory does not grow with `n_steps`.
        """
        import numpy as np
        import torch

        points, weights = np.polynomial.legendre.leggauss(n_steps)
        way, total = inputs - baselines, torch.zeros_like(inputs)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            sample = (baselines + float(point) * way).detach().requires_grad_()
            score = self._model(sample).flatten(1)[:, target].sum()
            total += float(weight) * torch.autograd.grad(score, sample)[0]
        return way * total


def integrated_gradients(model: Any) -> Any:
    """Captum's, if it is installed, else ours."""
    try:
        return import_module("captum.attr").IntegratedGradients(model)
    except ImportError:
        return GradientPath(model)
