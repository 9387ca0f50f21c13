"""The built-in handlers for texts. The expected words and probabilities are what TorchServe 0.12 answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.child.surface import text_words
from penstock.extensions.torchserve.child.surface.text import SourceVocabulary, TextClassifier

torch = pytest.importorskip("torch", reason="the handlers run torch models: pip install 'penstock-inference[torch]'")

Make = Callable[..., Any]
MODEL = """
    import torch
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.EmbeddingBag(50, 4)
            self.fc = torch.nn.Linear(4, 3)
            with torch.no_grad():
                self.embedding.weight.copy_(torch.arange(200.0).reshape(50, 4) / 200)
                self.fc.weight.copy_(torch.arange(12.0).reshape(3, 4) / 12)
                self.fc.bias.zero_()
        def forward(self, text, offsets):
            return self.fc(self.embedding(text, offsets))
"""
VOCABULARY = {"<unk>": 0, "a": 4, "great": 5, "movie": 6, "a great": 18, "great movie": 19}
MOVIE = {"neg": 0.24334413, "pos": 0.32434571, "2": 0.43231013}


@pytest.fixture
def classifier(folder: Path, context: Make) -> TextClassifier:
    (folder / "net.py").write_text(dedent(MODEL))
    (folder / "index_to_name.json").write_text('{"0": "neg", "1": "pos"}')
    torch.save(VOCABULARY, folder / "source_vocab.pt")
    handler = TextClassifier()
    handler.initialize(context(modelFile="net.py"))
    return handler


@pytest.mark.parametrize(
    ("function", "text", "expected"),
    [
        (
            text_words.expanded,
            "This isn't it, I'd go; it's. Don't CAN'T won't",
            "This is not it, I would go; it is. Do not Cannot will not",
        ),
        (
            text_words.expanded,
            "y'all ain't john's 'quoted' o'clock where'd",
            "you all as not johns quoted of the clock where did",
        ),
        (text_words.without_markup, "a <b>GREAT</b> movie &amp; 1 < 2 > &#39;<a\nb>", "a GREAT movie  1  <a\nb>"),
        (text_words.without_accents, "naïve Straße 日本 œuvre", "naive Strae  uvre"),
        (text_words.without_punctuation, "a_b, 3.5% #tag é “x”", "ab 35 tag é “x”"),
        (text_words.words_of, 'It\'s (ok). A <br />b; "c":d?', ["it", "'", "s", "(", "ok", ")", ".", "a", "b", "c", "d", "?"]),
    ],
)
def test_texts_are_cleaned_and_cut_as_in_torchserve(function: Callable[[str], Any], text: str, expected: Any) -> None:
    assert function(text) == expected


def test_neighbours_are_joined() -> None:
    assert list(text_words.ngrams("abc", 2)) == ["a", "b", "c", "a b", "b c"]
    assert list(text_words.ngrams("abc", 3)) == ["a", "b", "c", "a b", "b c", "a b c"]
    assert list(text_words.ngrams("a", 2)) == ["a"]


@pytest.mark.parametrize(
    "row", [{"data": "A <i>great</i> movie!"}, {"body": b"a great movie"}, {"body": bytearray(b"a great movie")}]
)
def test_a_text_is_classified(row: Any, classifier: TextClassifier, context: Make) -> None:
    (answer,) = classifier.handle([row], context())
    assert answer == pytest.approx(MOVIE, abs=1e-6)


def test_each_text_of_a_batch_is_classified(classifier: TextClassifier, context: Make) -> None:
    """TorchServe answers the first alone."""
    rows = [{"data": text} for text in ("great great", "a great movie", "")]
    alone = [classifier.handle([row], context())[0] for row in rows]
    together = classifier.handle(rows, context())
    assert together[1] == pytest.approx(MOVIE, abs=1e-6)
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other)


def test_an_explanation_has_words_and_what_each_adds(classifier: TextClassifier, context: Make) -> None:
    rows = [{"data": "a great movie", "target": 2}]
    (found,) = classifier.handle(rows, context(headers={"explain": "True"}))
    assert found["words"] == ["a", "great", "movie"]
    assert sum(value**2 for value in found["importances"]) == pytest.approx(1)
    # Without `great`, the two pairs with the largest ids become unknown.
    assert max(found["importances"]) == found["importances"][1]


@pytest.mark.parametrize("row", [{"body": {"text": "a"}}, {"body": ["a"]}])
def test_what_is_no_text_is_named(row: Any, classifier: TextClassifier) -> None:
    with pytest.raises(ValueError, match="a text comes as text/plain"):
        classifier.preprocess([row])


def test_a_vocabulary_may_be_a_list(folder: Path, classifier: TextClassifier, context: Make) -> None:
    torch.save(["<unk>", "a", "great"], folder / "source_vocab.pt")
    classifier.initialize(context(modelFile="net.py"))
    assert (classifier.source_vocab["great"], classifier.source_vocab["new"]) == (2, 0)


def test_a_vocabulary_without_a_word_for_unknown_ones_says_so() -> None:
    with pytest.raises(KeyError, match="neither 'new' nor <unk>"):
        SourceVocabulary({"a": 0})["new"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "Missing the source_vocab file"),
        (3, "source_vocab.pt holds a int"),
        (SourceVocabulary(VOCABULARY), r"source_vocab\.pt holds more than plain values.*vocab\.get_stoi"),
    ],
)
def test_what_is_no_vocabulary_is_named(
    content: Any, said: str, folder: Path, classifier: TextClassifier, context: Make
) -> None:
    (folder / "source_vocab.pt").unlink()
    if content is not None:
        torch.save(content, folder / "source_vocab.pt")
    with pytest.raises(HandlerLoadError, match=said):
        classifier.initialize(context(modelFile="net.py"))


def test_attributions_are_summed_to_one_number_per_token() -> None:
    found = TextClassifier().summarize_attributions(torch.tensor([[[1.0, 2.0], [4.0, 0.0]]]))
    assert found.tolist() == pytest.approx([0.6, 0.8])
