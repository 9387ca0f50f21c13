"""Image classification: the most probable classes of an image by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from penstock.handlers.contract import Context, Failure
from penstock.handlers.tasks.explaining import pixel_attributions
from penstock.handlers.tasks.image_task import Count, ImageOptions, ImageTask, Prepared
from penstock.handlers.tasks.images import FrameTransform
from penstock.handlers.tasks.labels import Activation, best, class_scores, read_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ImageClassificationOptions(ImageOptions, kw_only=True, frozen=True):
    """`labels` names a file next to the model. `activation` turns the model's scores into probabilities."""

    top_k: Count = 5
    labels: str = ""
    activation: Activation = "softmax"


class ImageClassification(ImageTask):
    """Classifies an image: `{label: probability}` of the `top_k` classes, best first."""

    task: ClassVar[str] = "image-classification"
    defaults: ClassVar[ImageClassificationOptions] = ImageClassificationOptions()
    options: ImageClassificationOptions

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        self.output_schema = {"type": "object", "additionalProperties": {"type": "number"}}
        self.labels = read_labels(context.folder, self.options.labels)

    def explain(self, batch: list[Any], /) -> list[Any]:
        """Per image the label, its probability, and a map of how much each pixel speaks for that label."""
        return [self._explained(item) for item in batch]

    def _explained(self, item: Prepared) -> Any:
        (outputs,) = self.run_stack([item.arrays])
        scores = self.probabilities(outputs)
        top = int(scores.argmax())
        attributions = pixel_attributions(self.runtime, self._feed([item.arrays]), read=self.output, target=top)
        if isinstance(attributions, Failure):
            return attributions
        # One number per pixel, because the channels of a colour mean nothing on their own.
        pixels = attributions.sum(axis=-1 if self.channels_last else 0)
        answer = {"label": self.labels.name(top), "probability": float(scores[top])}
        return {**answer, "width": self.frame.width, "height": self.frame.height, "attributions": pixels.tolist()}

    def answer(self, outputs: dict[str, NDArray[Any]], transform: FrameTransform) -> dict[str, float] | Failure:
        return best(self.probabilities(outputs), self.options.top_k, self.labels)

    def probabilities(self, outputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
        """The probabilities [classes] of one image."""
        scores: NDArray[Any] = class_scores(self.output(outputs)[None], self.options.activation)[0]
        return scores
