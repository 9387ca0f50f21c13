"""The built-in handlers for texts: `text_handler` and `text_classifier` of `ts`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.child.surface import text_words
from penstock.extensions.torchserve.child.surface.base_handler import BaseHandler
from penstock.extensions.torchserve.child.surface.lookups import map_class_to_label
from penstock.extensions.torchserve.child.surface.timing import timed
from penstock.extensions.torchserve.child.surface.weights import plain_content

log = logging.getLogger(__name__)
_VOCABULARY = "source_vocab.pt"
_UNKNOWN = ("<unk>", "[UNK]")
# The ids and the words of one text.
Prepared = tuple[Any, list[str]]


class SourceVocabulary(dict[str, int]):
    """Token -> id. An unknown token has the id of `<unk>`; without one it is an error."""

    def __missing__(self, token: str) -> int:
        for name in _UNKNOWN:
            if name in self:
                return self[name]
        raise KeyError(f"the vocabulary has neither {token!r} nor <unk>; add <unk> to source_vocab.pt")


class TextHandler(BaseHandler):
    """Reads the archive's vocabulary, and cleans and cuts texts."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None
        self.tokenizer: Any = text_words.words_of
        self.input_text: Any = None
        self.lig: Any = None

    def initialize(self, context: Any) -> None:
        """Also load source_vocab.pt. Raises `HandlerLoadError` if it is missing or holds more than a vocabulary."""
        super().initialize(context)
        self.source_vocab = _vocabulary(self.get_source_vocab_path(context))

    def get_source_vocab_path(self, ctx: Any) -> str:
        path = Path(ctx.system_properties.get("model_dir"), _VOCABULARY)
        if not path.is_file():
            raise HandlerLoadError(
                f"Missing the source_vocab file. Pack {_VOCABULARY} with --extra-files (docs/reference/torchserve.md)"
            )
        return str(path)

    def summarize_attributions(self, attributions: Any) -> Any:
        """One number per token from [1, tokens, dimensions], together of length 1."""
        import torch

        summed = attributions.sum(dim=-1).squeeze(0)
        return summed / torch.linalg.vector_norm(summed)

    def _remove_html_tags(self, text: str) -> str:
        return text_words.without_markup(text)

    def _remove_accented_characters(self, text: str) -> str:
        return text_words.without_accents(text)

    def _expand_contractions(self, text: str) -> str:
        return text_words.expanded(text)

    def _remove_punctuation(self, text: str) -> str:
        return text_words.without_punctuation(text)

    # The name had this spelling once, and old handlers call it.
    _remove_puncutation = _remove_punctuation

    def _tokenize(self, text: str) -> list[str]:
        return list(self.tokenizer(text))


class TextClassifier(TextHandler):
    """Per text the probabilities of all classes, by name. The model takes ids and offsets, as `torch.nn.EmbeddingBag` does."""

    ngrams = 2

    @timed
    def preprocess(self, data: Any) -> Prepared | list[Prepared]:
        """Ids and words of each text in the rows' `data` or `body`. A single text comes without a list, as in TorchServe."""
        prepared = [self._prepared(_text(row)) for row in data]
        return prepared[0] if len(prepared) == 1 else prepared

    def _prepared(self, text: str) -> Prepared:
        import torch

        plain = self._expand_contractions(self._remove_html_tags(text).lower())
        words = self._tokenize(self._remove_punctuation(self._remove_accented_characters(plain)))
        ids = [self.source_vocab[token] for token in text_words.ngrams(words, self.ngrams)]
        return torch.tensor(ids, dtype=torch.long, device=self.device), words

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Scores [texts, classes]. TorchServe answers the first text of a batch only."""
        import torch

        texts = [ids for ids, _ in (data if isinstance(data, list) else [data])]
        lengths = torch.tensor([0, *(len(ids) for ids in texts)], device=self.device)
        with torch.inference_mode():
            return self.model(torch.cat(texts), lengths[:-1].cumsum(0), *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> Any:
        import torch

        return map_class_to_label(torch.softmax(data, dim=1).tolist(), self.mapping)

    def get_insights(self, tensor_data: Any, raw_data: Any, target: Any = 0) -> Any:
        """Per text its words, and how much the probability of the class falls without each; together of length 1."""
        texts = tensor_data if isinstance(tensor_data, list) else [tensor_data]
        return [self._insight(words, int(target)) for _, words in texts]

    def _insight(self, words: list[str], target: int) -> dict[str, Any]:
        import torch

        shorter = [words, *([*words[:index], *words[index + 1 :]] for index in range(len(words)))]
        scores = torch.softmax(self.inference([self._prepared(" ".join(one)) for one in shorter]), dim=1)[:, target]
        falls = scores[0] - scores[1:]
        length = torch.linalg.vector_norm(falls)
        return {"words": words, "importances": (falls / length if length > 0 else falls).tolist()}


def _text(row: Any) -> str:
    value = row.get("data") or row.get("body") or ""
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8")
    if not isinstance(value, str):
        raise ValueError(f"a text comes as text/plain, as a field or as a JSON string, not as {type(value).__name__}")
    return value


def _vocabulary(path: str) -> Any:
    content = plain_content(path, "cpu", "Save what it knows: torch.save(vocab.get_stoi(), 'source_vocab.pt')")
    if isinstance(content, list):
        return SourceVocabulary({str(token): index for index, token in enumerate(content)})
    if isinstance(content, Mapping):
        return SourceVocabulary(content)
    raise HandlerLoadError(f"{_VOCABULARY} holds a {type(content).__name__}; save token -> id as a dict, or a list of tokens")
