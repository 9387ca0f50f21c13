"""A handler reports by an item's place in its call; the report names the item's place in its batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.handlers.contract import Context, Failure
from penstock.handlers.decorator import model as as_model
from penstock.handlers.running.call import NOTE_CHARS
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.runner import complete, infer, prepare
from tests.unit.workers.child.test_runner import model, numbers


class Recorder:
    def __init__(self) -> None:
        self.said: dict[int, str] = {}
        self.unwanted: set[int] = set()
        self.streams: dict[int, list[Any]] = {}

    def progressed_at(self, batch: int, place: int) -> float:
        return float("-inf")

    def begin(self, batch: int) -> None: ...

    def facts(self, batch: int) -> list[Any]:
        return []

    def progress(self, batch: int, place: int, fraction: float, note: str) -> None:
        assert 0.0 <= fraction <= 1.0
        self.said[place] = note

    def restart(self, batch: int, place: int) -> None:
        if place in self.streams:
            self.streams[place].append("|")

    def chunk(self, batch: int, place: int, data: bytes) -> None:
        self.streams.setdefault(place, []).append(json.loads(data))

    def is_unwanted(self, batch: int, place: int) -> bool:
        return place in self.unwanted


def run(inference: Callable[[Context, list[Any]], list[Any]], *values: int, **stages: Any) -> tuple[Recorder, Context]:
    loaded = model(lambda batch: inference(loaded.context, batch), **stages)
    recorder = loaded.context.running.reporter = Recorder()
    calls = Calls(loaded)
    flow = prepare(loaded, numbers(*values), calls)
    flow.batch = 1
    infer(loaded, flow, calls)
    complete(loaded, flow)
    return recorder, loaded.context


def tell(context: Context, batch: list[Any]) -> list[Any]:
    for item, value in zip(context.items, batch, strict=True):
        item.progress(0.5, str(value))
    return batch


def test_each_item_reports_for_its_place_in_the_batch() -> None:
    recorder, _ = run(tell, 10, 11, 12)
    assert recorder.said == {0: "10", 1: "11", 2: "12"}


def test_items_that_failed_before_do_not_shift_the_others() -> None:
    recorder, _ = run(tell, 10, 11, 12, preprocess=lambda inputs: [Failure("no") if x == 11 else x for x in inputs])
    assert recorder.said == {0: "10", 2: "12"}


@pytest.mark.parametrize("bad", range(5))
def test_a_call_that_is_repeated_in_parts_reports_for_the_right_items(bad: int) -> None:
    def choosy(context: Context, batch: list[Any]) -> list[Any]:
        if bad in batch:
            raise ValueError("bad")
        return tell(context, batch)

    recorder, _ = run(choosy, *range(5))
    assert recorder.said == {place: str(place) for place in range(5) if place != bad}


def test_calls_of_items_that_cost_alike_report_for_the_right_items() -> None:
    loaded = model(lambda batch: tell(loaded.context, batch))
    loaded.handler.call_bounds = (2, float("inf"))
    recorder = loaded.context.running.reporter = Recorder()
    calls = Calls(loaded)
    flow = prepare(loaded, numbers(5, 1, 4, 2, 3), calls)
    flow.batch, flow.costs = 1, [5.0, 1.0, 4.0, 2.0, 3.0]
    infer(loaded, flow, calls)
    assert flow.calls == 3
    assert recorder.said == {0: "5", 1: "1", 2: "4", 3: "2", 4: "3"}


def test_the_context_speaks_for_all_items_of_the_call() -> None:
    def whole(context: Context, batch: list[Any]) -> list[Any]:
        context.progress(1.5, "x" * 1_000)
        return batch

    recorder, _ = run(whole, 1, 2)
    assert recorder.said == {0: "x" * NOTE_CHARS, 1: "x" * NOTE_CHARS}


def test_a_call_is_cancelled_once_nobody_wants_any_of_its_items() -> None:
    heard: list[bool] = []

    def listening(context: Context, batch: list[Any]) -> list[Any]:
        for place in range(len(batch)):
            heard.append(context.cancelled)
            context.running.reporter.unwanted.add(place)  # type: ignore[union-attr]
        heard.append(context.cancelled)
        return batch

    run(listening, 1, 2)
    assert heard == [False, False, True]


def test_nothing_is_reported_between_two_calls_or_without_a_worker() -> None:
    recorder, context = run(lambda context, batch: batch, 1)
    context.progress(0.5, "late")
    assert (recorder.said, context.cancelled, Context("m").cancelled) == ({}, False, False)
    Context("m").progress(0.5)


def test_a_function_gets_the_context_by_the_name_of_its_parameter() -> None:
    @as_model
    def doubled(x: int, context: Context) -> str:
        return f"{2 * x} by {context.model}"

    handler = doubled.handler()
    handler.initialize(Context("m"))
    assert handler.inference([4]) == ["8 by m"]
