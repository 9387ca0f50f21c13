"""Which of its classes a text belongs to: the best few by name, best first."""

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

    def rows(self, outputs: dict[str, Array], mask: Array) -> Any:
        return class_scores(self.output(outputs), self.options.activation)

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        return [best(scores, self.options.top_k, self.labels) for scores in outputs]

    def explain(self, batch: list[Any], /) -> list[Any]:
        """How much each token speaks for the class that the text is given: label, probability, tokens and importances."""
        return [self._explained(tokens) for tokens in batch]

    def _explained(self, tokens: Tokens) -> Any:
        (scores,) = self.chances([tokens])
        top = int(scores.argmax())

        def chance_of_top(texts: Array) -> Array:
            return self.chances([Tokens(ids, tokens.kinds) for ids in texts])[:, top]

        found = token_attributions(tokens.ids, chance_of_top, blank=self.words.blank)
        if isinstance(found, Failure):
            return found
        shown = [place for place, token in enumerate(tokens.ids.tolist()) if token not in self.words.special]
        return {
            "label": self.labels.name(top),
            "probability": float(scores[top]),
            "tokens": [self.words.name(int(tokens.ids[place])) for place in shown],
            "importances": [float(found[place]) for place in shown],
        }

    def chances(self, texts: list[Tokens]) -> Array:
        """Probabilities [texts, classes], in calls of as many as the model takes."""
        import numpy as np

        parts = [self.run_texts(texts[at : at + self.rows_per_call]) for at in range(0, len(texts), self.rows_per_call)]
        return np.concatenate([self.rows(outputs, mask) for mask, outputs in parts])
