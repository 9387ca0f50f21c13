from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from penstock.errors import HandlerContractError, HandlerLoadError
from penstock.handlers.tasks.text_embedding import Pooling, normalized, pooled
from penstock.handlers.tasks.vocabulary import read_vocabulary
from penstock.model_spec import WarmOrigin
from penstock.workers.child.warmup import warm_up
from tests.unit.handlers.tasks.models import ask, opened, saved, states, tokenizer

pytest.importorskip("tokenizers", reason="text tasks need the tokenizers library: pip install tokenizers")

EMBED = "text-embedding"
CLASSIFY = "text-classification"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tokenizer(tmp_path)
    return states(tmp_path)


def test_every_text_gets_its_own_vector_whatever_runs_beside_it(model: Path) -> None:
    loaded = opened(model, EMBED, normalize=False)
    texts = ["red", "red green", "blue " * 7, "green", "the red and the blue"]
    together = ask(loaded, *texts)
    assert together == [ask(loaded, text)[0] for text in texts]
    assert together[:2] == [[2.0, 1.0], [2.5, 1.0]]


@pytest.mark.parametrize("threads", [2, 3])
def test_parallel_calls_answer_as_those_one_after_another_do(model: Path, threads: int) -> None:
    draw = random.Random(threads)
    texts = [" ".join(draw.choices(["red", "green", "blue", "the"], k=draw.randint(1, 200))) for _ in range(24)]
    beside, after = (opened(model, EMBED, threads=threads, parallel_calls=wish) for wish in (True, False))
    handlers: list[Any] = [beside.handler, after.handler]
    assert [handler.calls_at_once for handler in handlers] == [threads, 1]
    assert ask(beside, *texts) == ask(after, *texts)
    assert ask(beside, texts[0]) == ask(after, texts[0])


def test_a_batch_is_run_parallel_where_its_texts_can_be_cut_evenly(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = opened(model, EMBED, threads=2)
    handler: Any = loaded.handler
    sizes: list[int] = []
    plain = handler.run_parallel

    def counted(feeds: Any) -> Any:
        sizes.append(len(feeds))
        return plain(feeds)

    monkeypatch.setattr(handler, "run_parallel", counted)
    for texts in (["red"], ["red " * 200, "red"], ["red " * 100] * 4):
        ask(loaded, *texts)
    assert sizes == [4]


def test_padding_is_reported_and_bucketing_avoids_it(model: Path) -> None:
    texts = ["red", "red green blue and", "green", "the red and blue"]
    one: Any = opened(model, EMBED, rows_per_call=4)
    two: Any = opened(model, EMBED, rows_per_call=2)
    ask(one, *texts)
    ask(two, *texts)
    assert one.handler.padding_ratio() == pytest.approx(6 / 16)
    assert two.handler.padding_ratio() == 0


@pytest.mark.parametrize(("pooling", "vector"), [("mean", [7 / 3, 1.0]), ("cls", [2.0, 1.0]), ("max", [3.0, 1.0])])
def test_pooling_counts_the_texts_own_tokens_only(model: Path, pooling: str, vector: list[float]) -> None:
    loaded = opened(model, EMBED, pooling=pooling, normalize=False)
    answers = ask(loaded, "red red green", "blue and of the")
    assert answers[0] == pytest.approx(vector)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_a_short_text_is_not_broken_by_a_longer_neighbour_whose_padding_is_nan(tmp_path: Path, pooling: str) -> None:
    # A mask over queries and keys leaves nothing to attend to in a row of padding: its softmax is NaN, as is 0 times NaN.
    tokenizer(tmp_path)
    loaded = opened(states(tmp_path, padding=np.nan), EMBED, pooling=pooling, normalize=False)
    texts = ["red", "red green blue", "green the red and the blue"]
    assert ask(loaded, *texts) == [ask(loaded, text)[0] for text in texts]


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_text_without_tokens_is_a_zero_vector(pooling: Pooling) -> None:
    assert pooled(np.ones((1, 3, 2), np.float32), np.zeros((1, 3), np.int64), pooling).tolist() == [[0, 0]]


def test_what_is_nan_at_a_texts_own_token_is_not_hidden() -> None:
    broken = np.ones((1, 2, 2), np.float32)
    broken[0, 1, 0] = np.nan
    assert np.isnan(pooled(broken, np.ones((1, 2), np.int64), "mean")[0, 0])


def test_vectors_have_length_one_unless_options_say_otherwise(model: Path) -> None:
    (vector,) = ask(opened(model, EMBED), "blue")
    assert vector == pytest.approx([4 / np.sqrt(17), 1 / np.sqrt(17)])
    assert normalized(np.zeros((1, 3))).tolist() == [[0, 0, 0]]


def test_a_pooled_output_is_taken_as_it_is_and_another_shape_is_named() -> None:
    states = np.ones((2, 3, 4), dtype=np.float16)
    assert pooled(states[:, 0], np.ones((2, 3)), "none").dtype == np.float32
    with pytest.raises(HandlerContractError, match=r"pooling none takes an output \[batch, width\]"):
        pooled(states, np.ones((2, 3)), "none")
    with pytest.raises(HandlerContractError, match=r"pooling mean takes an output \[batch, tokens, width\]"):
        pooled(states[:, 0], np.ones((2, 3)), "mean")


def test_pooling_requires_one_vector_per_token() -> None:
    with pytest.raises(HandlerContractError, match=r"for 3 tokens the model's has shape \[2, 5, 4\]"):
        pooled(np.ones((2, 5, 4), np.float32), np.ones((2, 3)), "mean")


def test_an_output_per_token_is_no_score_per_class_and_stops_the_load(model: Path) -> None:
    # Regression: [tokens, width] was read as tokens * width classes, and the answer had their numbers and 200.
    loaded = opened(model, CLASSIFY)
    with pytest.raises(HandlerContractError, match=r"reads one score per class, \[classes\]; the model's output has shape \["):
        warm_up(loaded, [1], budget_s=60)
    assert [answer.code for answer in ask(loaded, "red green", "red green blue")] == ["handler_contract"] * 2


def test_a_long_text_is_cut_or_refused_alone(model: Path) -> None:
    cut = opened(model, EMBED, max_tokens=3, normalize=False)
    assert ask(cut, "red red green blue blue")[0] == pytest.approx([7 / 3, 1])
    strict = opened(model, EMBED, max_tokens=3, too_long="refuse")
    short, long = ask(strict, "red", "red red green blue blue")
    assert len(short) == 2
    assert (long.code, long.message) == ("invalid_input", "the text has 5 tokens, the model takes 3")


def test_the_tokenizers_own_limit_holds_unless_the_option_sets_another(tmp_path: Path) -> None:
    tokenizer(tmp_path, truncation=2)
    assert ask(opened(states(tmp_path), EMBED, normalize=False), "red red blue")[0] == [2.0, 1.0]
    assert ask(opened(states(tmp_path), EMBED, normalize=False, max_tokens=9), "red red blue")[0] == pytest.approx([8 / 3, 1])


def test_the_tokenizers_own_limit_holds_for_a_model_that_would_take_more(tmp_path: Path) -> None:
    # Regression: the model's limit of 512 overrode the tokenizer's, so .pt2 and .onnx of the same weights gave other vectors.
    file = tokenizer(tmp_path, truncation=16)
    assert read_vocabulary(file, wanted=None, maximum=512).limit == 16
    assert read_vocabulary(file, wanted=20, maximum=512).limit == 20
    assert read_vocabulary(file, wanted=20, maximum=8).limit == read_vocabulary(file, wanted=None, maximum=8).limit == 8


def test_without_a_limit_of_the_tokenizers_the_models_holds_and_then_512(tmp_path: Path) -> None:
    file = tokenizer(tmp_path)
    assert [read_vocabulary(file, wanted=None, maximum=tokens).limit for tokens in (8, 4096, None)] == [8, 4096, 512]


@pytest.mark.parametrize("max_tokens", [None, 2])
def test_a_long_text_is_cut_at_the_side_that_the_tokenizer_names(tmp_path: Path, max_tokens: int | None) -> None:
    # Regression: the text was cut at its end whatever the file said, and the vector was that of another text.
    tokenizer(tmp_path, truncation=2, direction="left")
    loaded = opened(states(tmp_path), EMBED, normalize=False, max_tokens=max_tokens)
    assert ask(loaded, "red red blue and") == [[4.5, 1.0]]


@pytest.mark.parametrize("too_long", ["truncate", "refuse"])
def test_a_model_of_short_texts_gets_ready_on_a_sample_that_fits(tmp_path: Path, too_long: str) -> None:
    # Regression: every model got a sample longer than 16 tokens, so with too_long = "refuse" such a model never loaded.
    tokenizer(tmp_path, marks="the $A and")
    loaded = opened(states(tmp_path), EMBED, max_tokens=4, too_long=too_long)
    warm = warm_up(loaded, [1, 2], budget_s=60)
    assert (warm.origin, [run.size for run in warm.runs]) == (WarmOrigin.SAMPLE, [1, 2])
    handler: Any = loaded.handler
    assert [len(tokens.ids) for tokens in handler.preprocess([handler.sample])] == [4]


def test_a_limit_that_leaves_no_room_for_a_word_is_an_error_at_load(tmp_path: Path) -> None:
    tokenizer(tmp_path, marks="the $A and")
    with pytest.raises(HandlerLoadError, match=r"a text of 2 tokens has no room for a word: tokenizer.json adds 2 of its own"):
        opened(states(tmp_path), EMBED, max_tokens=2)


def test_inputs_are_strings_or_objects_with_a_text(model: Path) -> None:
    loaded = opened(model, EMBED, normalize=False)
    alone, inside, empty, bad = ask(loaded, "red", {"text": "red"}, "", {"txt": "red"})
    assert alone == inside == [2.0, 1.0]
    assert empty == [0.0, 0.0]
    assert bad.code == "invalid_input"


def test_classes_of_a_text_are_named_best_first(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    (tmp_path / "names.txt").write_text("dull\nbright\n")
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["real"], ["top"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["top", "weights"], ["logits"]),
    ]
    path = saved(
        tmp_path / "classes.onnx",
        nodes,
        {"input_ids": (TensorProto.INT64, ["n", "tokens"])},
        {"logits": TensorProto.FLOAT},
        {"weights": np.array([[0.0, 1.0]], dtype=np.float32)},
    )
    (answer,) = ask(opened(path, CLASSIFY, labels="names.txt"), "red")
    assert list(answer) == ["bright", "dull"]
    assert answer["bright"] == pytest.approx(1 / (1 + np.exp(-2)))
    (answer,) = ask(opened(path, CLASSIFY, activation="sigmoid", top_k=1), "red")
    assert answer == {"1": pytest.approx(1 / (1 + np.exp(-2)))}


def test_the_second_part_of_a_pair_is_marked_where_the_model_asks_for_it(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    names = ("token_type_ids", "input_ids", "attention_mask")
    # The state of a token is (its part, 1), so the mean is the share of the second part in the text.
    loaded = opened(states(tmp_path, names), EMBED, normalize=False)
    assert ask(loaded, {"text": "red red red", "pair": "blue"})[0] == pytest.approx([0.25, 1.0])


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (("input_ids", "pixels"), {}, "the model takes input_ids, pixels; a text task fills"),
        (("attention_mask",), {}, "Name the input of token ids with the option input"),
        (("input_ids",), {"tokenizer": "other.json"}, "there is no tokenizer"),
        (("input_ids",), {"rows": 4}, "text-embedding has no option 'rows'"),
        (("input_ids",), {"tokenizer": "states.onnx"}, "is not a tokenizer.json"),
    ],
)
def test_what_cannot_be_fed_is_an_error_at_load(
    tmp_path: Path, names: tuple[str, ...], options: dict[str, Any], words: str
) -> None:
    tokenizer(tmp_path)
    with pytest.raises(HandlerLoadError, match=words):
        opened(states(tmp_path, names), EMBED, **options)


def test_an_input_of_another_name_can_be_pointed_at(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    assert ask(opened(states(tmp_path, ("words",)), EMBED, input="words", normalize=False), "red")[0] == [2.0, 1.0]
