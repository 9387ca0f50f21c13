"""Which of its classes an image shows: the best few by name, best first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from penstock.handlers.handler import Context
from penstock.handlers.tasks.image_task import Count, ImageOptions, ImageTask
from penstock.handlers.tasks.images import Placement
from penstock.handlers.tasks.labels import Activation, activated, best, read_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ImageClassificationOptions(ImageOptions, kw_only=True, frozen=True):
    """`labels` names a file next to the model; `activation` turns the model's numbers into probabilities."""

    top_k: Count = 5
    labels: str = ""
    activation: Activation = "softmax"


class ImageClassification(ImageTask):
    """Says what an image shows: `{label: probability}` of the best classes, best first."""

    task: ClassVar[str] = "image-classification"
    defaults: ClassVar[ImageClassificationOptions] = ImageClassificationOptions()
    options: ImageClassificationOptions

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        self.output_schema = {"type": "object", "additionalProperties": {"type": "number"}}
        self.labels = read_labels(context.folder, self.options.labels)

    def answer(self, outputs: dict[str, NDArray[Any]], place: Placement) -> dict[str, float]:
        scores = activated(self.output(outputs).reshape(-1), self.options.activation)
        return best(scores, self.options.top_k, self.labels)
