from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.handlers.contract import Context, Failure, Handler
from penstock.handlers.decorator import ModelAttributes
from penstock.handlers.loaded import Loaded, Stage
from penstock.handlers.media import codec_for
from penstock.handlers.runtimes.batches import BatchSizes
from penstock.handlers.runtimes.padding import Padding
from penstock.job import Call
from penstock.workers.child.calls.halving import DeviceFault
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.runner import complete, infer, prepare, run_batch
from penstock.workers.ipc.frames import BatchDone, Failed, Item, Output


def model(inference: Stage, *, preprocess: Stage | None = None, postprocess: Stage | None = None, item: Any = Any) -> Loaded:
    return Loaded(
        context=Context("m", max_batch_size=32),
        handler=Handler(),
        attributes=ModelAttributes(),
        codec=codec_for(item),
        accepts=("application/json",),
        inference=inference,
        preprocess=preprocess,
        postprocess=postprocess,
    )


def to_explain(*values: int) -> list[Item]:
    return [Item("application/json", str(value).encode(), call=Call.EXPLAIN) for value in values]


def numbers(*values: int) -> list[Item]:
    return [Item("application/json", str(value).encode()) for value in values]


def read(outcome: BatchDone) -> list[Any]:
    """Return the output text of each item, or the code of its failure."""
    return [place.code if isinstance(place, Failed) else place.data.decode() for place in outcome.outcomes]


def echo(batch: list[Any]) -> list[Any]:
    return batch


class Choosy:
    """A stage that raises for the whole call if one value is bad, and counts its calls."""

    def __init__(self, bad: set[int], error: Callable[[int], Exception] = lambda value: ValueError(f"bad {value}")) -> None:
        self._bad = bad
        self._error = error
        self.calls = 0

    def __call__(self, batch: list[int]) -> list[int]:
        self.calls += 1
        for value in batch:
            if value in self._bad:
                raise self._error(value)
        return [value * 10 for value in batch]


def test_a_batch_passes_all_stages_and_every_output_finds_its_place() -> None:
    loaded = model(
        lambda batch: [x * 10 for x in batch],
        preprocess=lambda inputs: [x + 1 for x in inputs],
        postprocess=lambda outputs: [{"y": x} for x in outputs],
    )
    assert run_batch(loaded, numbers(1, 2)).outcomes == [
        Output("application/json", b'{"y":20}'),
        Output("application/json", b'{"y":30}'),
    ]


def test_seconds_are_those_between_the_ends_of_each_stage() -> None:
    now = [100.0]

    def taking(seconds: float) -> Stage:
        def stage(batch: list[Any]) -> list[Any]:
            now[0] += seconds
            return batch

        return stage

    loaded = model(taking(0.5), preprocess=taking(0.25), postprocess=taking(2.0))
    outcome = run_batch(loaded, numbers(1), clock=lambda: now[0])
    assert (outcome.preprocess_s, outcome.inference_s, outcome.postprocess_s) == (0.25, 0.5, 2.0)


class Padded(Handler):
    """A model that reports the padding ratio given to it."""

    def __init__(self, padding: Any) -> None:
        self._padding = padding

    def padding_ratio(self) -> Any:
        return self._padding


@pytest.mark.parametrize(("padding", "seen"), [(0.25, 0.25), (None, None), (7, 1.0), ("much", None)])
def test_a_handler_may_say_how_much_of_its_batch_was_padding(padding: Any, seen: float | None) -> None:
    assert run_batch(replace(model(echo), handler=Padded(padding)), numbers(1)).padding == seen


class PaddedByProperty(Handler):
    padding_ratio = 0.5


def test_its_padding_may_be_a_property_too() -> None:
    assert run_batch(replace(model(echo), handler=PaddedByProperty()), numbers(1)).padding == 0.5


def test_a_handler_without_a_padding_ratio_has_none() -> None:
    assert run_batch(model(echo), numbers(1)).padding is None


def test_an_empty_batch_calls_nothing() -> None:
    stage = Choosy(set())
    assert run_batch(model(stage), []).outcomes == []
    assert stage.calls == 0


def test_the_steps_can_overlap_those_of_other_batches() -> None:
    loaded = model(lambda batch: [x * 10 for x in batch])
    calls = Calls(loaded)
    first, second = prepare(loaded, numbers(1), calls), prepare(loaded, numbers(2), calls)
    infer(loaded, second, calls)
    infer(loaded, first, calls)
    assert read(complete(loaded, first)) == ["10"]
    assert read(complete(loaded, second)) == ["20"]


def test_an_input_that_cannot_be_read_fails_alone_and_never_reaches_the_handler() -> None:
    stage = Choosy(set())
    items = [*numbers(1), Item("application/json", b"{"), Item("image/png", b"\x89"), *numbers(4)]
    assert read(run_batch(model(stage, item=int), items)) == ["10", "invalid_input", "unsupported_media_type", "40"]
    assert stage.calls == 1


def test_an_input_refused_by_the_users_own_type_is_invalid() -> None:
    outcome = run_batch(model(echo, item=Even), [Item("application/json", b'{"x": 3}'), Item("application/json", b'{"x": 2}')])
    assert read(outcome) == ["invalid_input", '{"x":2}']


def test_when_no_input_can_be_read_the_handler_is_not_called() -> None:
    stage = Choosy(set())
    assert read(run_batch(model(stage), [Item("application/json", b"{")] * 3)) == ["invalid_input"] * 3
    assert stage.calls == 0


def test_a_failure_returned_by_a_stage_takes_its_item_out_of_the_later_stages() -> None:
    seen: list[list[int]] = []

    def watch(batch: list[int]) -> list[int | Failure]:
        seen.append(batch)
        return [Failure("odd", "odd") if value == 3 else value for value in batch]

    loaded = model(watch, preprocess=lambda inputs: [Failure("one") if x == 1 else x for x in inputs], postprocess=watch)
    assert read(run_batch(loaded, numbers(1, 2, 3, 4))) == ["handler_error", "2", "odd", "4"]
    assert seen == [[2, 3, 4], [2, 4]]


def test_one_bad_item_in_eight_costs_at_most_seven_calls() -> None:
    for bad in range(8):
        stage = Choosy({bad})
        outcome = run_batch(model(stage), numbers(*range(8)))
        assert [place for place, value in enumerate(read(outcome)) if value == "handler_error"] == [bad]
        assert stage.calls <= 7


@pytest.mark.parametrize("stage_name", ["preprocess", "inference", "postprocess"])
@given(data=st.data(), size=st.integers(1, 24))
def test_whatever_items_are_bad_only_those_fail_and_calls_are_bounded(stage_name: str, data: st.DataObject, size: int) -> None:
    bad = data.draw(st.sets(st.integers(0, size - 1)))
    stage = Choosy(bad)
    stages: dict[str, Stage] = {"inference": echo, stage_name: stage}
    outcome = run_batch(model(**stages), numbers(*range(size)))
    assert read(outcome) == ["handler_error" if place in bad else str(place * 10) for place in range(size)]
    assert stage.calls <= max(1, min(2 * size - 1, 1 + 2 * len(bad) * math.ceil(math.log2(size))))
    assert outcome.cap is None


def test_the_item_at_fault_carries_class_and_message_but_no_traceback() -> None:
    failure = run_batch(model(Choosy({1})), numbers(1)).outcomes[0]
    assert failure == Failed("handler_error", "ValueError: bad 1", kinds=("ValueError", "Exception"))


def test_a_stage_that_drops_an_item_breaks_the_contract_for_that_item_alone() -> None:
    outcome = run_batch(model(lambda batch: [value for value in batch if value != 2]), numbers(1, 2, 3, 4))
    assert read(outcome) == ["1", "handler_contract", "3", "4"]
    failure = outcome.outcomes[1]
    assert isinstance(failure, Failed)
    assert "inference got 1 inputs and returned 0 outputs" in failure.message


@pytest.mark.parametrize("wrong", [None, "text", b"bytes", {"a": 1}, 3, Failure("all")])
def test_a_stage_that_returns_no_list_breaks_the_contract(wrong: Any) -> None:
    outcome = run_batch(model(lambda batch: wrong), numbers(1))
    assert read(outcome) == ["handler_contract"]


def test_tuples_and_generators_count_as_lists() -> None:
    loaded = model(lambda batch: (value for value in batch), postprocess=tuple)
    assert read(run_batch(loaded, numbers(1, 2))) == ["1", "2"]


def test_running_out_of_memory_halves_the_batch_and_reports_the_largest_size_that_passed() -> None:
    def small(batch: list[int]) -> list[int]:
        if len(batch) > 3:
            raise MemoryError
        return batch

    outcome = run_batch(model(small), numbers(*range(8)))
    assert read(outcome) == [str(value) for value in range(8)]
    assert outcome.cap == 2


@pytest.mark.parametrize(
    ("buckets", "batch", "cap"),
    [
        ((1, 8, 32), 32, 8),
        # No part between these sizes can run, because 2 to 32 rows all run as 32.
        ((1, 32), 32, 1),
        ((1, 32), 2, 1),
        # The part that ran had 5 rows in a bucket of 8; the cap grows back to 8 by itself.
        ((8, 32), 10, 5),
        ((32,), 32, 0),
    ],
)
def test_with_buckets_memory_that_ran_out_leaves_the_largest_part_whose_bucket_fits(
    buckets: tuple[int, ...], batch: int, cap: int
) -> None:
    """Halves are padded up to a bucket again, but the cap falls to 1 only if no larger bucket fits."""
    padding = Padding(BatchSizes(buckets=buckets))

    def device(feed: dict[str, Any]) -> dict[str, Any]:
        if len(feed["x"]) > 16:
            raise MemoryError
        return feed

    loaded = model(lambda values: list(padding.run({"x": np.array(values)}, device)["x"]))
    outcome = run_batch(loaded, numbers(*range(batch)))
    assert outcome.cap == cap
    assert read(outcome) == [str(value) if cap else "oom" for value in range(batch)]


def test_an_error_of_the_device_that_stays_is_passed_on_and_not_bisected() -> None:
    stage = Choosy({3}, lambda value: RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(DeviceFault, match="illegal memory access") as fault:
        run_batch(model(stage), numbers(1, 2, 3, 4))
    assert not fault.value.broken
    assert stage.calls == 1


def test_a_device_that_is_gone_is_known_from_an_input_that_harms_it() -> None:
    stage = Choosy({1}, lambda value: RuntimeError("CUDA error: uncorrectable ECC error encountered"))
    with pytest.raises(DeviceFault) as fault:
        run_batch(model(echo, postprocess=stage), numbers(1))
    assert fault.value.broken


def test_an_item_too_large_by_itself_fails_as_oom_and_its_neighbours_pass() -> None:
    outcome = run_batch(model(Choosy({5}, lambda value: MemoryError())), numbers(*range(8)))
    assert read(outcome)[5] == "oom"
    assert outcome.cap == 4


def test_memory_for_not_even_one_item_reports_zero() -> None:
    outcome = run_batch(model(Choosy({1, 2}, lambda value: MemoryError())), numbers(1, 2))
    assert (read(outcome), outcome.cap) == (["oom", "oom"], 0)


def test_the_tightest_stage_sets_the_largest_size() -> None:
    def at_most(limit: int) -> Stage:
        def stage(batch: list[int]) -> list[int]:
            if len(batch) > limit:
                raise MemoryError
            return batch

        return stage

    assert run_batch(model(at_most(1), preprocess=at_most(4)), numbers(*range(8))).cap == 1
    assert run_batch(model(at_most(4), preprocess=at_most(2)), numbers(*range(8))).cap == 2


def test_an_output_json_cannot_hold_fails_alone() -> None:
    outcome = run_batch(model(lambda batch: [float("nan"), object(), 1]), numbers(1, 2, 3))
    assert read(outcome) == ["handler_contract", "handler_contract", "1"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_request_to_stop_is_not_swallowed(stop: type[BaseException]) -> None:
    def stopping(batch: list[Any]) -> list[Any]:
        raise stop

    with pytest.raises(stop):
        run_batch(model(stopping), numbers(1))


@dataclass
class Even:
    x: int

    def __post_init__(self) -> None:
        if self.x % 2:
            raise LookupError("odd")


def test_items_to_be_explained_run_apart_and_pass_no_later_stage() -> None:
    calls: list[tuple[str, list[int]]] = []

    def explain(batch: list[int]) -> list[str]:
        calls.append(("explain", batch))
        return [f"because {value}" for value in batch]

    def inference(batch: list[int]) -> list[int]:
        calls.append(("inference", batch))
        return batch

    loaded = replace(
        model(inference, preprocess=lambda batch: [v + 1 for v in batch], postprocess=lambda batch: [-v for v in batch]),
        explain=explain,
    )
    mixed = [*numbers(1), *to_explain(2), *numbers(3), *to_explain(4)]
    assert read(run_batch(loaded, mixed)) == ["-2", '"because 3"', "-4", '"because 5"']
    assert calls == [("explain", [3, 5]), ("inference", [2, 4])]
    assert read(run_batch(loaded, to_explain(7))) == ['"because 8"']


def test_an_item_that_cannot_be_explained_fails_alone() -> None:
    def explain(batch: list[int]) -> list[int]:
        if 2 in batch:
            raise ValueError("no reason")
        return batch

    loaded = replace(model(echo), explain=explain)
    unread = Item("application/json", b"{", call=Call.EXPLAIN)
    assert read(run_batch(loaded, [*to_explain(1, 2), *numbers(3), unread])) == ["1", "handler_error", "3", "invalid_input"]


def test_a_model_without_an_explain_method_says_so() -> None:
    assert read(run_batch(model(echo), [*to_explain(1), *numbers(2)])) == ["not_explainable", "2"]
