"""What a handler yields goes to its items; what is left of each at the end is its output."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.handlers.contract import Failure
from penstock.handlers.decorator import model as as_model
from penstock.handlers.running.streaming import streaming_stage
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.runner import complete, infer, prepare
from penstock.workers.ipc.frames import Failed
from tests.unit.workers.child.test_runner import model, numbers
from tests.unit.workers.child.test_running import Recorder

Generate = Callable[[list[Any]], Any]


def stream(
    generate: Generate, *values: int, most_bytes: int = 1_000, recorder: Recorder | None = None
) -> tuple[Any, list[Any]]:
    """The chunks of each item, and the outputs or the codes of the failures."""
    recorder = recorder or Recorder()
    loaded = model(list)
    loaded = replace(loaded, inference=streaming_stage(generate, loaded.context))
    loaded.context.running.reporter, loaded.context.running.stream_bytes = recorder, most_bytes
    calls = Calls(loaded)
    flow = prepare(loaded, numbers(*values), calls)
    flow.batch = 1
    infer(loaded, flow, calls)
    outcomes = complete(loaded, flow).outcomes
    return recorder.streams, [one.code if isinstance(one, Failed) else json.loads(one.data) for one in outcomes]


def counting(batch: list[int]) -> Any:
    for step in range(max(batch)):
        yield [f"{step} " if step < most else None for most in batch]


def test_texts_are_joined_and_an_item_without_a_chunk_is_left_out_of_the_step() -> None:
    streams, outputs = stream(counting, 1, 3)
    assert streams == {0: ["0 "], 1: ["0 ", "1 ", "2 "]}
    assert outputs == ["0 ", "0 1 2 "]


def test_other_chunks_are_a_list_and_what_is_returned_goes_before() -> None:
    def generate(batch: list[int]) -> Any:
        yield [{"x": value} for value in batch]
        return [None, "whole"]

    assert stream(generate, 1, 2) == ({0: [{"x": 1}], 1: [{"x": 2}]}, [[{"x": 1}], "whole"])


def test_an_item_fails_alone_in_its_place() -> None:
    def generate(batch: list[int]) -> Any:
        yield ["a", Failure("no", "bad_item"), "b"]
        yield ["c", "d", "e"]

    assert stream(generate, 1, 2, 3) == ({0: ["a", "c"], 2: ["b", "e"]}, ["ac", "bad_item", "be"])


def test_a_call_that_raises_is_repeated_in_parts_and_the_streams_of_the_others_begin_anew() -> None:
    def generate(batch: list[int]) -> Any:
        yield ["a"] * len(batch)
        if 13 in batch:
            raise ValueError("bad luck")
        yield ["b"] * len(batch)

    streams, outputs = stream(generate, 12, 13)
    assert streams == {0: ["a", "|", "a", "b"], 1: ["a", "|", "a"]}
    assert outputs == ["ab", "handler_error"]


def test_a_stream_that_is_too_large_fails_its_item_and_ends_the_generator_if_there_is_no_other() -> None:
    def generate(batch: list[int]) -> Any:
        while True:
            yield ["x" * 100]

    streams, outputs = stream(generate, 1)
    assert (len(streams[0]), outputs) == (8, ["stream_too_large"])


@pytest.mark.parametrize("chunk", [b"raw", float("nan"), object()])
def test_what_json_cannot_hold_is_no_chunk(chunk: Any) -> None:
    def generate(batch: list[int]) -> Any:
        yield [chunk, "fine"]

    assert stream(generate, 1, 2) == ({1: ["fine"]}, ["handler_contract", "fine"])


@pytest.mark.parametrize("step", ["ab", ["a"], {"a": 1, "b": 2}])
def test_a_step_that_is_no_list_of_a_chunk_per_item_breaks_the_contract(step: Any) -> None:
    def generate(batch: list[int]) -> Any:
        yield step if len(batch) == 2 else ["x", "y"]

    assert stream(generate, 1, 2)[1] == ["handler_contract"] * 2


def test_a_generator_is_closed_once_nobody_wants_its_items() -> None:
    recorder, closed = Recorder(), []

    def generate(batch: list[int]) -> Any:
        try:
            for step in range(1_000):
                if step == 2:
                    recorder.unwanted = {0, 1}
                yield ["x", "y"]
        finally:
            closed.append(True)

    streams, _ = stream(generate, 1, 2, recorder=recorder)
    assert (streams[0], closed) == (["x"] * 3, [True])


def test_a_generator_per_item_steps_side_by_side_and_fails_alone() -> None:
    @as_model
    def count(most: int) -> Any:
        for step in range(most):
            if most == 2 and step == 1:
                raise ValueError("two")
            yield step
        return None if most < 4 else "many"

    streams, outputs = stream(count.handler().inference, 1, 2, 3, 4)
    assert streams == {0: [0], 1: [0], 2: [0, 1, 2], 3: [0, 1, 2, 3]}
    assert outputs == [[0], "handler_error", [0, 1, 2], "many"]
