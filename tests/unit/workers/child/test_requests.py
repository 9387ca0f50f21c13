"""Inputs as `penstock.Request`s: for handlers that ask for them, in batches, shards and the warm-up; and for no other."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.inputs.request import packed
from penstock.job import Payload
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.runner import complete_rows, infer, prepare_rows, run_batch
from penstock.workers.child.warmup import warm_up
from penstock.workers.ipc.frames import INPUT_MISSING_CODE, Failed, Item, JobFacts, Output

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
