from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import HandlerContractError, HandlerLoadError
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.model_spec import WarmOrigin
from penstock.workers.child.warmup import sizes, warm_up

CODE = """
from penstock import Failure, Handler
class Model(Handler):
    {sample}
    first_call_s = {first_call_s}
    def initialize(self, context): self.calls = []
    def inference(self, batch: {kind}) -> list:
        {first}
        self.calls.append(list(batch))
        return batch
"""


@pytest.fixture
def ticks() -> Iterator[int]:
    return count()


def made(tmp_path: Path, *, sample: str = "", kind: str = "list", first: str = "pass", first_call_s: float = 0.0) -> Loaded:
    path = tmp_path / "model.py"
    path.write_text(CODE.format(sample=sample, kind=kind, first=first, first_call_s=first_call_s))
    return load(str(path), "m")


def calls(loaded: Loaded) -> list[list[Any]]:
    found: list[list[Any]] = loaded.handler.calls  # type: ignore[attr-defined]
    return found


def test_sizes_double_up_to_the_limit_unless_buckets_are_declared() -> None:
    assert sizes(12) == [1, 2, 4, 8, 12]
    assert sizes(1) == [1]
    assert sizes(12, (4, 8, 32)) == [4, 8, 12]


def test_every_size_of_a_declared_sample_runs_twice_and_its_times_count(tmp_path: Path, ticks: Iterator[int]) -> None:
    loaded = made(tmp_path, sample="sample = 7")
    done = warm_up(loaded, [1, 2], budget_s=100, clock=lambda: float(next(ticks)))
    assert done.origin is WarmOrigin.SAMPLE
    assert [(run.size, run.first_s, run.run_s) for run in done.runs] == [(1, 1.0, 1.0), (2, 1.0, 1.0)]
    assert calls(loaded) == [[7], [7], [7, 7], [7, 7]]


def test_a_first_call_made_while_the_model_was_loaded_counts_for_the_smallest_size(
    tmp_path: Path, ticks: Iterator[int]
) -> None:
    """Regression: a model took 34 s to compile while it was loaded, but its second call, 3.9 ms, was shown as the first."""
    loaded = made(tmp_path, sample="sample = 7", first_call_s=34.0)
    done = warm_up(loaded, [1, 4], budget_s=8, clock=lambda: float(next(ticks)))
    assert [(run.size, run.first_s, run.run_s) for run in done.runs] == [(1, 34.0, 1.0), (4, 1.0, 1.0)]


def test_a_slower_first_call_with_the_sample_is_reported_as_measured(tmp_path: Path, ticks: Iterator[int]) -> None:
    loaded = made(tmp_path, sample="sample = 7", first_call_s=0.5)
    assert warm_up(loaded, [1], budget_s=8, clock=lambda: float(next(ticks))).runs[0].first_s == 1.0


def test_without_a_sample_the_input_comes_from_the_schema(tmp_path: Path) -> None:
    loaded = made(tmp_path, kind="list[dict[str, int] | list[int]]")
    done = warm_up(loaded, [1], budget_s=100)
    assert (done.origin, len(done.runs), done.note) == (WarmOrigin.SCHEMA, 1, "")


def test_a_model_without_annotations_is_ready_without_a_warm_up(tmp_path: Path) -> None:
    done = warm_up(made(tmp_path), [1], budget_s=100)
    assert (done.origin, done.runs) == (WarmOrigin.NONE, ())
    assert "sample" in done.note


def test_what_a_generated_input_raises_is_a_note_and_not_the_end_of_the_model(tmp_path: Path) -> None:
    done = warm_up(made(tmp_path, kind="list[int]", first="raise LookupError(batch)"), [1], budget_s=100)
    assert done.origin is WarmOrigin.NONE
    assert "LookupError" in done.note


def test_a_model_that_breaks_the_contract_on_a_generated_input_is_not_ready(tmp_path: Path) -> None:
    """Regression: a model file with an output without batch axis became ready with a note, and every job failed."""
    first = "from penstock.errors import HandlerContractError; raise HandlerContractError('no row each')"
    with pytest.raises(HandlerContractError, match="no row each"):
        warm_up(made(tmp_path, kind="list[int]", first=first), [1], budget_s=100)


def test_what_the_models_own_sample_raises_stops_the_load(tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        warm_up(made(tmp_path, sample="sample = 7", first="raise LookupError(batch)"), [1], budget_s=100)


def test_a_function_of_one_item_gets_one_input_that_nobody_sent(tmp_path: Path) -> None:
    """Regression: a function that took 2 s was ready after a minute, in which it had been called 30 times."""
    path = tmp_path / "slow.py"
    path.write_text(
        "import penstock\ncalls = []\n@penstock.model\ndef slow(x: int) -> int:\n    calls.append(x)\n    return x\n"
    )
    loaded = load(str(path), "slow")
    done = warm_up(loaded, [1, 2, 4, 8], budget_s=100)
    assert ([run.size for run in done.runs], done.origin) == ([1], WarmOrigin.SCHEMA)
    assert loaded.handler._function.__globals__["calls"] == [1]  # type: ignore[attr-defined]


SMALL_MEMORY = "if len(batch) > {fits}: raise MemoryError(f'{{len(batch)}} items do not fit')"


@pytest.mark.parametrize(
    ("source", "origin"), [({"sample": "sample = 7"}, WarmOrigin.SAMPLE), ({"kind": "list[int]"}, WarmOrigin.SCHEMA)]
)
def test_a_batch_that_does_not_fit_ends_the_warm_up_and_the_largest_that_did_is_reported(
    tmp_path: Path, source: dict[str, Any], origin: WarmOrigin
) -> None:
    # Regression: this MemoryError stopped the load and named no batch size, while under traffic it only caps the batches.
    done = warm_up(made(tmp_path, first=SMALL_MEMORY.format(fits=3), **source), [1, 2, 4, 8], budget_s=100)
    assert (done.origin, [run.size for run in done.runs], done.fits) == (origin, [1, 2], 2)
    assert done.note == "a batch of 4 does not fit into memory, one of 2 does: batches begin there; set max_batch_size = 2"


def test_a_model_whose_single_item_does_not_fit_is_refused_with_what_to_do(tmp_path: Path) -> None:
    loaded = made(tmp_path, sample="sample = 7", first=SMALL_MEMORY.format(fits=0))
    with pytest.raises(
        HandlerLoadError, match=r"not even a batch of 1 fits into memory on cpu: MemoryError: 1 items do not fit\. Free"
    ):
        warm_up(loaded, [1, 2], budget_s=100)


def test_a_sample_that_the_model_refuses_is_reported_in_words_and_not_by_a_class_of_ours(tmp_path: Path) -> None:
    # Regression: the message began with our class, "NoExample: preprocess refused it: ...".
    refusing = "def preprocess(self, inputs): return [Failure('too long') for _ in inputs]"
    loaded = made(tmp_path, sample=f"sample = 7\n    {refusing}")
    with pytest.raises(HandlerLoadError, match="on its own sample: preprocess refused it: too long; set `sample`"):
        warm_up(loaded, [1], budget_s=100)


def test_sizes_that_would_outlast_the_budget_stay_cold_and_are_named(tmp_path: Path, ticks: Iterator[int]) -> None:
    done = warm_up(made(tmp_path, sample="sample = 7"), [1, 2, 4, 8], budget_s=8, clock=lambda: float(next(ticks)))
    assert [run.size for run in done.runs] == [1, 2]
    assert done.note.startswith("sizes over 2 are not warm")
