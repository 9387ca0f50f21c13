"""Text classification: the most probable classes of a text by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from penstock.handlers.contract import Context, Failure
from penstock.handlers.tasks.explaining import token_attributions
from penstock.handlers.tasks.labels import Activation, best, class_scores, read_labels
from penstock.handlers.tasks.text import Count, TextOptions, TextTask, Tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


class TextClassificationOptions(TextOptions, kw_only=True, frozen=True):
    """`labels` names a file next to the model. `activation` is sigmoid if a text may belong to several classes."""

    top_k: Count = 5
    labels: str = ""
    activation: Activation = "softmax"


class TextClassification(TextTask):
    """Classifies a text: `{label: probability}` of the `top_k` classes, best first."""

    task: ClassVar[str] = "text-classification"
    usual_output: ClassVar[str] = "logits"
    defaults: ClassVar[TextClassificationOptions] = TextClassificationOptions()
    options: TextClassificationOptions

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        self.output_schema = {"type": "object", "additionalProperties": {"type": "number"}}
        self.labels = read_labels(context.folder, self.options.labels)

    def rows(self, outputs: dict[str, Array], mask: Array) -> Any:
        return class_scores(self.output(outputs), self.options.activation)

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        return [best(scores, self.options.top_k, self.labels) for scores in outputs]

    def explain(self, batch: list[Any], /) -> list[Any]:
        """Per text the label, its probability, the tokens, and how much each token speaks for that label."""
        return [self._explained(tokens) for tokens in batch]

    def _explained(self, tokens: Tokens) -> Any:
        (scores,) = self.probabilities([tokens])
        top = int(scores.argmax())

        def probability_of_top(texts: Array) -> Array:
            return self.probabilities([Tokens(ids, tokens.kinds) for ids in texts])[:, top]

        attributions = token_attributions(tokens.ids, probability_of_top, blank=self.vocabulary.blank)
        if isinstance(attributions, Failure):
            return attributions
        shown = [index for index, token in enumerate(tokens.ids.tolist()) if token not in self.vocabulary.special]
        return {
            "label": self.labels.name(top),
            "probability": float(scores[top]),
            "tokens": [self.vocabulary.name(int(tokens.ids[index])) for index in shown],
            "importances": [float(attributions[index]) for index in shown],
        }

    def probabilities(self, texts: list[Tokens]) -> Array:
        """Probabilities [texts, classes], computed in calls of as many texts as the model takes."""
        import numpy as np

        parts = [self.run_texts(texts[at : at + self.rows_per_call]) for at in range(0, len(texts), self.rows_per_call)]
        return np.concatenate([self.rows(outputs, mask) for mask, outputs in parts])
