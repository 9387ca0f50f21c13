"""Which of its classes a text belongs to: the best few by name, best first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from penstock.handlers.handler import Context
from penstock.handlers.tasks.labels import Activation, activated, best, read_labels
from penstock.handlers.tasks.text import Count, TextOptions, TextTask

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TextClassificationOptions(TextOptions, kw_only=True, frozen=True):
    """`labels` names a file next to the model; `activation` is sigmoid where a text may belong to several classes."""

    top_k: Count = 5
    labels: str = ""
    activation: Activation = "softmax"


class TextClassification(TextTask):
    """Says what a text is about: `{label: probability}` of the best classes, best first."""

    task: ClassVar[str] = "text-classification"
    usual_output: ClassVar[str] = "logits"
    defaults: ClassVar[TextClassificationOptions] = TextClassificationOptions()
    options: TextClassificationOptions

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        self.output_schema = {"type": "object", "additionalProperties": {"type": "number"}}
        self.labels = read_labels(context.folder, self.options.labels)

    def rows(self, outputs: dict[str, NDArray[Any]], mask: NDArray[Any]) -> Any:
        scores = self.output(outputs)
        return activated(scores.reshape(len(scores), -1), self.options.activation)

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        return [best(scores, self.options.top_k, self.labels) for scores in outputs]
