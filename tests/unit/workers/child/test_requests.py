"""Inputs as `penstock.Request`s: for handlers that ask for them, in batches, shards and the warm-up; and for no other."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from penstock.cli.jobs.debug import run_stages
from penstock.handlers.contract import Failure
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.inputs.request import RequestInput, packed
from penstock.job import Call, Payload
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.reports import ReportSender
from penstock.workers.child.runner import complete, infer, prepare, run_batch
from penstock.workers.child.shards.rows import complete_rows, prepare_rows
from penstock.workers.child.warmup import warm_up
from penstock.workers.ipc.frames import (
    INPUT_MISSING_CODE,
    BatchFacts,
    Failed,
    FromChild,
    Item,
    JobFacts,
    Output,
    WantFacts,
)

HEAD = "from penstock import Failure, Handler, Request, model\nfrom typing import Any\n"
SAYS = "[r.input, r.job, r.attempt, r.priority, r.owner, dict(r.headers), dict(r.query)]"
CLASS = f"""
class Mine(Handler):
    sample = 1
    def preprocess(self, inputs: list[Request[int]]) -> list: return inputs
    def inference(self, batch: list) -> list: return [{SAYS} for r in batch]
"""
BARE = f"@model(batch=True)\ndef mine(batch: list[Request]) -> list: return [{SAYS} for r in batch]\n"
FUNCTION = f"@model\ndef mine(r: Request[int]) -> list: return {SAYS}\n"
ASYNC = f"@model\nasync def mine(r: Request[int]) -> list: return {SAYS}\n"
PLAIN = "@model\ndef mine(item: int) -> int: return item\n"
RAW = "@model\ndef mine(item: bytes) -> int: return len(item)\n"
FACTS = JobFacts("job-1", 2, "bulk", "team-a", monotonic() + 60.0)
SAID = ["job-1", 2, "bulk", "team-a", {"x-tenant": "blue"}, {"language": "de"}]
NOTHING: list[Any] = ["", 1, "interactive", "", {}, {}]


def loaded(folder: Path, text: str) -> Loaded:
    path = folder / "mine.py"
    path.write_text(HEAD + text)
    return load(str(path), "mine")


def request(data: bytes, facts: JobFacts | None = FACTS) -> Item:
    body = packed(Payload("application/json", data), headers={"x-tenant": "blue"}, query={"language": "de"})
    return Item(body.content_type, body.data, facts=facts)


def outputs(model: Loaded, *items: Item) -> list[Any]:
    return [msgspec.json.decode(one.data) if isinstance(one, Output) else one.code for one in run_batch(model, items).outcomes]


@pytest.mark.parametrize("text", [CLASS, BARE, FUNCTION, ASYNC])
def test_each_item_comes_with_its_job_and_request(tmp_path: Path, text: str) -> None:
    model = loaded(tmp_path, text)
    plain = Item("application/json", b"5", facts=FACTS)
    assert outputs(model, request(b"4"), plain) == [[4, *SAID], [5, *SAID[:4], {}, {}]]


def test_a_bad_item_fails_alone_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    model = loaded(tmp_path, FUNCTION)
    broken = Item("application/vnd.penstock.request", b"\xc1", facts=FACTS)
    missing = Item("application/json", is_missing=True, facts=FACTS)
    found = outputs(model, request(b'"x"'), broken, missing, request(b"4"))
    assert found == ["invalid_input", "invalid_input", INPUT_MISSING_CODE, [4, *SAID]]


def test_the_time_that_remains_is_that_of_the_job(tmp_path: Path) -> None:
    model = loaded(tmp_path, "@model\ndef mine(r: Request[int]) -> float: return min(r.remaining_s, 1e9)\n")
    early, late = JobFacts(deadline=monotonic() + 60.0), JobFacts(deadline=monotonic() - 5.0)
    [soon, passed, endless] = outputs(model, request(b"1", early), request(b"1", late), request(b"1", None))
    assert 0.0 < soon <= 60.0
    assert (passed, endless) == (0.0, 1e9)


def test_rows_of_a_shard_have_the_facts_of_their_job(tmp_path: Path) -> None:
    model = loaded(tmp_path, CLASS)
    flow = prepare_rows(model, "application/json", [1, "two", 3], calls := Calls(model), facts=FACTS)
    infer(model, flow, calls)
    first, second, third = complete_rows(model, flow).outputs
    assert (first, third) == ([1, *SAID[:4], {}, {}], [3, *SAID[:4], {}, {}])
    assert second.code == "invalid_input"


def test_a_sample_is_the_input_alone_and_belongs_to_no_job(tmp_path: Path) -> None:
    model = loaded(tmp_path, CLASS)
    assert len(warm_up(model, [1, 2], budget_s=60.0).runs) == 2
    assert model.as_given(4).input == 4
    assert model.as_given(given := model.as_given(4)) is given


@pytest.mark.parametrize(("text", "answer"), [(PLAIN, 4), (RAW, 1)])
def test_a_handler_that_asks_for_nothing_gets_the_input_alone(tmp_path: Path, text: str, answer: int) -> None:
    model = loaded(tmp_path, text)
    assert (model.asks, model.as_given(4)) == (False, 4)
    assert outputs(model, request(b"4")) == [answer]


def test_the_schema_is_that_of_the_input(tmp_path: Path) -> None:
    assert loaded(tmp_path, CLASS).input_schema == {"type": "integer"}
    assert loaded(tmp_path, BARE).input_schema is None


def test_a_missing_input_of_a_request_is_told_as_any_other(tmp_path: Path) -> None:
    [outcome] = run_batch(loaded(tmp_path, FUNCTION), [Item("", is_missing=True)]).outcomes
    assert isinstance(outcome, Failed)
    assert outcome.code == INPUT_MISSING_CODE


LOOKS = f"""
class Mine(Handler):
    sample = 1
    def initialize(self, context): self.context = context
    def inference(self, batch: list[int]) -> list:
        found = self.context.requests
        assert [r.input for r in found] == batch
        if 13 in batch: raise ValueError("thirteen")
        return [{SAYS} for r in found]
    def explain(self, batch: list) -> list: return self.inference(batch)
"""
LOOKS_ONE = f"@model\ndef mine(x: int, context) -> list:\n    [r] = context.requests\n    return {SAYS}\n"
LOOKS_ASYNC = f"@model\nasync def mine(x: int, context) -> list:\n    [r] = context.requests\n    return {SAYS}\n"
LOOKS_EARLY = """
class Mine(Handler):
    def initialize(self, context): self.context = context
    def preprocess(self, inputs: list) -> list: return [r.job for r in self.context.requests] or inputs
    def inference(self, batch: list) -> list: return batch
"""


def told(folder: Path, text: str) -> Loaded:
    return replace(loaded(folder, text), told=True)


@pytest.mark.parametrize("text", [LOOKS, LOOKS_ONE, LOOKS_ASYNC])
def test_a_handler_of_plain_inputs_may_look_at_their_requests(tmp_path: Path, text: str) -> None:
    plain = Item("application/json", b"5", facts=FACTS)
    assert outputs(told(tmp_path, text), request(b"4"), plain) == [[4, *SAID], [5, *SAID[:4], {}, {}]]


def test_the_requests_are_those_of_the_items_in_hand_when_a_call_is_repeated_in_parts(tmp_path: Path) -> None:
    items = [request(b"%d" % n, JobFacts(f"job-{n}")) for n in (1, 13, 3, 4)]
    first, bad, *others = outputs(told(tmp_path, LOOKS), *items)
    assert (bad, [one[1] for one in (first, *others)]) == ("handler_error", ["job-1", "job-3", "job-4"])


def test_explanations_are_told_of_their_own_requests(tmp_path: Path) -> None:
    items = [request(b"1", JobFacts("a")), request(b"2", JobFacts("b")), request(b"3", JobFacts("c"))]
    items[1].call = Call.EXPLAIN
    assert [one[1] for one in outputs(told(tmp_path, LOOKS), *items)] == ["a", "b", "c"]


def test_the_supervisor_is_asked_once_and_only_by_a_handler_that_looks(tmp_path: Path) -> None:
    asked: list[FromChild] = []

    def answer(frame: FromChild) -> None:
        asked.append(frame)
        assert isinstance(frame, WantFacts)
        sender.on_facts(BatchFacts(frame.batch, [JobFacts("one"), JobFacts("two", owner="team-b")]))

    sender = ReportSender(answer, start_thread=lambda work: None)
    for text, expected in ((LOOKS_ONE, [["one", ""], ["two", "team-b"]]), (PLAIN, [])):
        model = told(tmp_path, text)
        model.context.running.reporter = sender
        flow = prepare(model, [Item("application/json", b"1"), Item("application/json", b"2")], calls := Calls(model))
        flow.batch = 7
        infer(model, flow, calls)
        done = [msgspec.json.decode(one.data) for one in complete(model, flow).outcomes if isinstance(one, Output)]
        assert [[one[1], one[4]] for one in done if isinstance(one, list)] == expected
    assert asked == [WantFacts(7)]


def test_nobody_awaits_the_batch_any_more(tmp_path: Path) -> None:
    model = loaded(tmp_path, LOOKS_ONE)
    sender = ReportSender(lambda frame: sender.on_facts(BatchFacts(1, [])), start_thread=lambda work: None)
    model.context.running.reporter = sender
    flow = prepare(model, [Item("application/json", b"4")], calls := Calls(model))
    flow.batch = 1
    infer(model, flow, calls)
    assert flow.values == [[4, *NOTHING]]


def test_rows_of_a_shard_can_be_looked_at_too(tmp_path: Path) -> None:
    model = loaded(tmp_path, LOOKS)
    flow = prepare_rows(model, "application/json", [1, 2], calls := Calls(model), facts=FACTS)
    infer(model, flow, calls)
    assert complete_rows(model, flow).outputs == [[1, *SAID[:4], {}, {}], [2, *SAID[:4], {}, {}]]


@pytest.mark.parametrize("text", [LOOKS, CLASS])
def test_rows_are_told_what_their_run_says_of_its_request(tmp_path: Path, text: str) -> None:
    model, said = loaded(tmp_path, text), RequestInput("", b"", {"x-tenant": "blue"}, {"language": "de"})
    flow = prepare_rows(model, "application/json", [1, 2], calls := Calls(model), facts=FACTS, said=said)
    infer(model, flow, calls)
    assert complete_rows(model, flow).outputs == [[1, *SAID], [2, *SAID]]


def test_a_warm_up_and_a_debugged_batch_belong_to_no_job_and_then_nothing_is_known(tmp_path: Path) -> None:
    model = loaded(tmp_path, LOOKS)
    assert len(warm_up(model, [1, 2], budget_s=60.0).runs) == 2
    assert run_stages(model, [4, 5], say=lambda line: None) == {0: [4, *NOTHING], 1: [5, *NOTHING]}
    assert model.context.requests == []


def test_a_look_from_a_stage_beside_inference_is_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path, LOOKS_EARLY)
    model.context.running.beside.add(threading.get_ident())
    [outcome] = run_batch(model, [Item("application/json", b"4")]).outcomes
    assert isinstance(outcome, Failed)
    assert outcome.code == "handler_contract"
    assert "annotate preprocess with list[penstock.Request[...]]" in outcome.message


@pytest.mark.parametrize(("text", "looks"), [(LOOKS, True), (LOOKS_ONE, True), (PLAIN, False), (FUNCTION, False)])
def test_only_code_that_has_the_context_can_look(tmp_path: Path, text: str, looks: bool) -> None:
    assert loaded(tmp_path, text).may_look is looks


def test_a_request_that_cannot_be_read_fails_alone_for_a_handler_that_looks(tmp_path: Path) -> None:
    broken = Item("application/vnd.penstock.request", b"\xc1", facts=FACTS)
    assert outputs(told(tmp_path, LOOKS), broken, request(b"4")) == ["invalid_input", [4, *SAID]]
    assert not isinstance(outputs(told(tmp_path, PLAIN), request(b"4"))[0], Failure)
