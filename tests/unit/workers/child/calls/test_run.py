from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context, Failure, Handler
from penstock.handlers.decorator import ModelAttributes
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.handlers.media import codec_for
from penstock.workers.child.calls.costs import CostReader, complete, natural_costs
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Failed, Item, Output


class Clock:
    """Time that only the model spends."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Padding(Handler):
    """Pads to the longest: 2 ms and 0.2 ms per character. A text with "bad" in it makes its whole call raise."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[list[str]] = []

    def inference(self, batch: list[str], /) -> list[str]:
        self.calls.append(list(batch))
        if any("bad" in text for text in batch):
            raise ValueError("bad text")
        self.clock.now += 0.002 + 0.0002 * len(batch) * max(map(len, batch))
        return [text.upper() for text in batch]


class Costed(Padding):
    def cost(self, item: str, /) -> float:
        return len(item)


def loaded(handler: Padding, *, limit: int = 16, **stages: Any) -> Loaded:
    return Loaded(
        context=Context("m", max_batch_size=limit),
        handler=handler,
        attributes=ModelAttributes(),
        codec=codec_for(str),
        accepts=("application/json",),
        inference=handler.inference,
        cost=None if type(handler).cost is Handler.cost else handler.cost,
        **stages,
    )


def ask(model: Loaded, calls: Calls, texts: Sequence[str]) -> list[str]:
    """Each item's output, or the code of its failure."""
    items = [Item("text/plain", text.encode()) for text in texts]
    handler: Any = model.handler
    outcomes = run_batch(model, items, calls=calls, clock=handler.clock).outcomes
    return [place.code if isinstance(place, Failed) else json.loads(place.data) for place in outcomes]


texts = st.lists(st.text("ab", max_size=40) | st.just("bad") | st.just("x" * 200), max_size=50)


@pytest.mark.parametrize("kind", [Padding, Costed])
@given(batches=st.lists(texts, max_size=8))
def test_every_item_is_answered_once_in_its_place_and_only_bad_ones_fail(kind: type[Padding], batches: list[list[str]]) -> None:
    model = loaded(kind(Clock()))
    calls = Calls(model)
    for batch in batches:
        assert ask(model, calls, batch) == ["handler_error" if "bad" in text else text.upper() for text in batch]
    assert all(len(call) <= 16 for call in model.handler.calls)  # type: ignore[attr-defined]


def test_texts_of_like_length_share_a_call_once_it_is_known_that_the_model_pads() -> None:
    handler = Costed(Clock())
    model = loaded(handler)
    calls = Calls(model)
    for turn in range(40):
        ask(model, calls, ["x" * 4, "x" * 200] * (1 + turn % 8))
    handler.calls.clear()
    assert ask(model, calls, ["x" * 4, "x" * 200] * 8) == ["X" * 4, "X" * 200] * 8
    assert any(set(map(len, call)) == {4} and len(call) == 8 for call in handler.calls)
    assert all(len(set(map(len, call))) == 1 for call in handler.calls)


def test_what_nobody_declares_is_learned_from_the_sizes_of_the_inputs() -> None:
    handler = Padding(Clock())
    model = loaded(handler)
    calls = Calls(model)
    for turn in range(120):
        ask(model, calls, ["x" * (4 + turn % 7), "x" * (100 + 13 * (turn % 9))] + ["x" * 10] * (turn % 15))
    handler.calls.clear()
    ask(model, calls, ["x" * 4, "x" * 200] * 8)
    assert all(max(map(len, call)) == min(map(len, call)) for call in handler.calls)


class Quick(Padding):
    """As much quicker as `factor` says."""

    factor = 1_000

    def inference(self, batch: list[str], /) -> list[str]:
        began = self.clock.now
        outputs = super().inference(batch)
        self.clock.now = began + (self.clock.now - began) / self.factor
        return outputs


def test_a_quick_model_gets_its_batches_as_they_come_and_the_planner_is_not_asked() -> None:
    handler = Quick(Clock())
    model = loaded(handler)
    calls = Calls(model)
    for turn in range(40):
        ask(model, calls, ["x" * 4, "x" * 200] * (1 + turn % 8))
    handler.calls.clear()
    known = calls.planner.times.curve.table()
    for _ in range(32):
        ask(model, calls, ["x" * 4, "x" * 200] * 8)
    assert [len(call) for call in handler.calls] == [16] * 32
    assert calls.planner.times.curve.table() == known
    assert (calls.wish(), calls.news()) == (0, None)


def test_a_model_that_becomes_slow_is_learned_about_again() -> None:
    handler = Quick(Clock())
    model = loaded(handler)
    calls = Calls(model)
    for factor in (1_000, 1):
        handler.factor = factor
        for _ in range(20):
            ask(model, calls, ["x" * 100] * 16)
    assert calls.planner.times.curve.runs(16) > 10


def test_a_batch_of_more_than_one_calls_worth_passes_every_stage_in_calls_of_at_most_the_limit() -> None:
    sizes: list[int] = []

    def stage(values: list[Any]) -> list[Any]:
        sizes.append(len(values))
        return values

    handler = Costed(Clock())
    model = loaded(handler, limit=4, preprocess=stage, postprocess=stage)
    assert ask(model, Calls(model), [str(number) for number in range(10)]) == [str(number) for number in range(10)]
    assert sizes == [4, 4, 2] * 2
    assert max(map(len, handler.calls)) == 4


def test_bad_items_of_several_calls_fail_in_the_places_they_came_in() -> None:
    model = loaded(Costed(Clock()), limit=2)
    assert ask(model, Calls(model), ["bad 1", "a", "b", "a bad one", "c"]) == ["handler_error", "A", "B", "handler_error", "C"]


def test_memory_that_runs_out_in_one_call_costs_no_other_call_anything() -> None:
    class Small(Costed):
        def inference(self, batch: list[str], /) -> list[str]:
            if len(batch) * max(map(len, batch)) > 100:
                raise MemoryError
            return super().inference(batch)

    model = loaded(Small(Clock()), limit=4)
    given = ["x" * length for length in (60, 2, 3, 50, 4, 40, 30, 5)]
    assert ask(model, Calls(model), given) == [text.upper() for text in given]


def test_calls_that_did_not_fit_into_memory_are_smaller_the_next_time_and_batches_are_not() -> None:
    class Small(Costed):
        def inference(self, batch: list[str], /) -> list[str]:
            if len(batch) * max(map(len, batch)) > 100:
                self.calls.append(["too large"])
                raise MemoryError
            return super().inference(batch)

    handler = Small(Clock())
    model = loaded(handler, limit=4)
    calls = Calls(model)
    given = ["x" * 40] * 8
    done = run_batch(model, [Item("text/plain", text.encode()) for text in given], calls=calls, clock=handler.clock)
    assert done.cap is None
    assert ["too large"] in handler.calls
    handler.calls.clear()
    assert ask(model, calls, given) == [text.upper() for text in given]
    assert ["too large"] not in handler.calls


class Faulty(Padding):
    """Its cost is what the text says, and may be anything."""

    def cost(self, item: str, /) -> float:
        return json.loads(item)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fault", ["NaN", "Infinity", "-1", '"seven"', "{", "null"])
def test_a_fault_of_cost_fails_no_item_and_is_reported_once(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = loaded(Faulty(Clock()))
    calls = Calls(model)
    for _ in range(3):
        assert ask(model, calls, ["1", fault, "3"]) == ["1", fault.upper(), "3"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "cost" in lines[0]


def test_an_item_without_a_usable_cost_counts_as_the_costliest() -> None:
    assert complete([3.0, None, 7.0, None]) == [3.0, 7.0, 7.0, 7.0]
    assert complete([None]) == [1.0]
    assert complete([1e-300, 1e300]) == [0.0, 1e15]
    reader = CostReader(loaded(Faulty(Clock())))
    assert reader.declared(["5", "nonsense", "0"]) == [5.0, None, 0.0]


def test_cost_is_called_once_per_item_after_preprocess_or_before_it_if_the_handler_wishes() -> None:
    class Counting(Costed):
        seen: list[str]

        def cost(self, item: str, /) -> float:
            self.seen.append(item)
            return 1.0

    class Early(Counting):
        cost_stage = "input"

    for kind, wanted in ((Counting, ["<a>", "<b>"]), (Early, ["a", "b"])):
        handler = kind(Clock())
        handler.seen = []
        model = loaded(handler, preprocess=lambda values: [f"<{value}>" for value in values])
        ask(model, Calls(model), ["a", "b"])
        assert handler.seen == wanted


def test_an_item_that_failed_before_inference_has_no_cost() -> None:
    model = loaded(Costed(Clock()), preprocess=lambda values: [Failure("no") if value == "b" else value for value in values])
    assert ask(model, Calls(model), ["aa", "b", "c"]) == ["AA", "handler_error", "C"]


def test_the_natural_size_of_a_value() -> None:
    assert natural_costs(["four", b"12345", [1, 2, 3], np.zeros((2, 5))]) == [4, 5, 3, 10]
    assert natural_costs([{"text": "four", "pair": "ab", "top_k": 3}, {"top_k": 3}, 7, None]) == [6, None, None, None]


def test_a_decorated_function_takes_its_cost_as_an_option(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import penstock\n@penstock.model(batch=True, cost=len)\ndef upper(texts: list[str]) -> list[str]:\n"
        "    return [text.upper() for text in texts]\n"
    )
    model = load(str(path), "upper")
    assert model.cost is not None
    assert model.cost("four") == 4
    assert run_batch(model, [Item("text/plain", b"four")]).outcomes == [Output("application/json", b'"FOUR"')]


@pytest.mark.parametrize(
    ("line", "said"),
    [("cost = 3", "cost is no method"), ('cost_stage = "later"', "cost_stage"), ("async def cost(self, item): ...", "async")],
)
def test_a_cost_that_cannot_be_called_is_refused_as_the_model_loads(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        f"from penstock import Handler\nclass Model(Handler):\n    {line}\n    def inference(self, batch): return batch\n"
    )
    with pytest.raises(HandlerLoadError, match=said):
        load(str(path), "m")


def test_padding_of_several_calls_is_that_of_all_tokens_together() -> None:
    class Reporting(Costed):
        padding_ratio = 0.0

        def inference(self, batch: list[str], /) -> list[str]:
            self.padding_ratio = 1 - sum(map(len, batch)) / (len(batch) * max(map(len, batch)))
            return super().inference(batch)

    handler = Reporting(Clock())
    model = replace(loaded(handler, limit=2), inference=handler.inference)
    done = run_batch(model, [Item("text/plain", b"x" * length) for length in (1, 2, 3, 4)], clock=handler.clock)
    assert done.padding == pytest.approx(2 / 12)
    assert done.calls == 2
