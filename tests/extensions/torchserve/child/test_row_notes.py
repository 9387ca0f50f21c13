"""Handlers of archives, run with real batches: each request gets its own answer, however the handler looks at its batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from penstock.extensions.torchserve.child.row_notes import NotedRows
from penstock.handlers.loaded import Loaded
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Output
from tests.extensions.torchserve.child.archives import failed, item, loaded

# Each ends with `out`, one entry per request. `calls`: the sizes of the calls of `handle`.
HANDLER = """
import copy, json, logging
from concurrent.futures import ThreadPoolExecutor
calls = []
logger = logging.getLogger(__name__)
def read(row):
    return row.get("data") or row.get("body")
def helper(rows, kind=None):
    return [read(row) for row in rows]
def first_of(rows):
    return rows[0]["body"]
def handle(data, context):
    if data is None:
        return None
    calls.append(len(data))
    size = len(data)
{}
    return out
"""

READ_ONE = [
    "out = [data[0]['body']] * size",
    "out = [data[0].get('data') or data[0].get('body')] * size",
    "data = data[0]\nout = [data.get('body')] * size",
    "out = [data.pop(0)['body']] * size",
    "row = data.pop()\nout = [row['body']] * size",
    "row = next(iter(data))\nout = [row['body']] * size",
    "row = next(reversed(data))\nout = [row['body']] * size",
    "out = [data[:1][0]['body']] * size",
    "out = [data[-1]['body']] * size",
    "requests = data or []\nout = [requests[0]['body']] * size",
    "if len(data) == 0 or not data:\n    return []\nout = [data[0]['body']] * size",
    "logger.info('got %s of %d', data, len(data))\nout = [data[0]['body']] * size",
    "for row in data:\n    out = [row['body']] * size\n    break",
    "for row in data:\n    return [row['body']] * size",
    "inputs = data[0] if isinstance(data, list) else data\nout = [inputs['body']] * size",
    "try:\n    text = data[0]['text']\nexcept KeyError:\n    text = data[0]['body']\nout = [text] * size",
    "handle.kept = data\nout = [handle.kept[0]['body']] * size",
    "out = [first_of(data)] * size",
    "out = [first_of(rows=data)] * size",
    "out = [ThreadPoolExecutor().submit(first_of, data).result()] * size",
    # These read all rows and keep one, and say so by the length of their answer.
    "rows = [read(row) for row in data]\nout = [rows[0]]",
    "for row in data:\n    found = read(row)\nout = [found]",
    "(*_, row) = data\nout = [row['body']]",
    "out = []\nout.append(helper(data)[0])",
]
READ_ALL = [
    "out = [row['body'] for row in data]",
    "out = []\nfor row in data:\n    out.append(read(row))",
    "out = []\nfor index, row in enumerate(data):\n    out.append(row['body'])",
    "out = []\nfor i in range(len(data)):\n    out.append(data[i]['body'])",
    "kind = data[0].get('kind')\nout = [read(row) for row in data]",
    "out = list(map(read, data))",
    "out = list(ThreadPoolExecutor().map(read, data))",
    "out = [read(a) for a, b in zip(data, range(9))]",
    "rows = iter(data)\nout = [read(next(rows)) for _ in range(size)]",
    "first, *rest = data\nout = [read(row) for row in (first, *rest)]",
    "out = []\nwhile data:\n    out.append(read(data.pop(0)))",
    "out = helper(rows=data, kind=1)",
    "out = [read(row) for row in data[:2]] + [read(row) for row in data[2:]]",
    "out = [read(data[0])] + [read(row) for row in data[1:]]",
    "out = [read(row) for row in [*data]]",
    "out = [read(row) for row in tuple(data)]",
    "out = [read(row) for row in list(data)]",
    "out = [read(row) for row in data + []]",
    "out = [read(row) for row in data.copy()]",
    "out = [read(row) for row in copy.copy(data)]",
    "out = [read(row) for row in copy.deepcopy(data)]",
    "data.sort(key=lambda row: row['body'])\nout = [read(row) for row in data]",
    "out = [row['body'] for row in json.loads(json.dumps(data))]",
    "out = [read(row) for row in reversed(data)][::-1]",
    "out = [read(row) for row in filter(None, data)]",
    "out = [read(row) for row in data * 1]",
]


def archive(folder: Path, body: str) -> Loaded:
    return loaded(folder, HANDLER.format(indent(body, "    ")))


def answered(model: Loaded, calls: Calls, *values: Any) -> list[Any]:
    done = run_batch(model, [item(json.dumps(value).encode()) for value in values], calls=calls)
    return [json.loads(one.data) if isinstance(one, Output) else failed(one).code for one in done.outcomes]


def sizes() -> list[int]:
    found: list[int] = sys.modules["handler"].calls
    return found


@pytest.mark.parametrize("body", READ_ONE)
def test_a_handler_that_reads_one_row_is_found_at_its_first_batch(tmp_path: Path, body: str) -> None:
    model = archive(tmp_path, body)
    calls = Calls(model)
    assert answered(model, calls, 1, 2, 3, 4) == [1, 2, 3, 4]
    assert sizes() == [4, 1, 1, 1, 1]
    assert answered(model, calls, 5, 6, 7) == [5, 6, 7]
    assert sizes()[5:] == [1, 1, 1]


@pytest.mark.parametrize("body", READ_ALL)
def test_a_handler_that_goes_through_its_batch_keeps_it(tmp_path: Path, body: str) -> None:
    model = archive(tmp_path, body)
    calls = Calls(model)
    assert answered(model, calls, 1, 2, 3, 4) == [1, 2, 3, 4]
    assert answered(model, calls, 5, 6, 7) == [5, 6, 7]
    assert sizes() == [4, 3]


def test_a_batch_of_one_tells_nothing(tmp_path: Path) -> None:
    model = archive(tmp_path, "out = [data[0]['body']]")
    calls = Calls(model)
    assert [answered(model, calls, value) for value in range(3)] == [[0], [1], [2]]
    assert sizes() == [1, 1, 1]
    assert model.call_bounds[0] > 1


def test_a_handler_that_reads_no_row_answers_all_alike(tmp_path: Path) -> None:
    model = archive(tmp_path, "out = [True] * size")
    assert answered(model, Calls(model), 1, 2) == [True, True]
    assert sizes() == [2]


def test_an_error_at_the_first_row_accuses_nobody(tmp_path: Path) -> None:
    model = archive(tmp_path, "out = []\nfor row in data:\n    out.append(10 / row['body'])")
    calls = Calls(model)
    assert answered(model, calls, 0, 1, 2, 5) == ["handler_error", 10.0, 5.0, 2.0]
    assert answered(model, calls, 1, 2, 5) == [10.0, 5.0, 2.0]
    assert sizes() == [4, 2, 1, 1, 2, 3]


def test_a_bad_row_of_a_handler_that_reads_one_fails_alone(tmp_path: Path) -> None:
    model = archive(tmp_path, "out = [10 / data[0]['body']] * size")
    calls = Calls(model)
    for _ in range(2):
        assert answered(model, calls, 0, 1, 2, 5) == ["handler_error", 10.0, 5.0, 2.0]


ANSWER_ALL = "\nout = [row['body'] for row in data]"
OF_FIRST = [
    "context.get_request_header(0, 'language')",
    "context.get_all_request_header(0)",
    "context.set_response_content_type(0, 'application/json')",
    "context.set_response_header(0, 'x-model', 'a')",
    "context.set_response_status(422, 'Bad Thing')",
]
OF_EACH = [
    "context.get_request_header(0, 'explain')",
    "[context.get_all_request_header(idx) for idx in range(size)]",
    "[context.set_response_status(422, 'Bad Thing', idx=idx) for idx in range(size)]",
    "context.set_all_response_status(201)",
    "context.get_request_header(0, 'a'), context.get_request_header(size - 1, 'a')",
]


@pytest.mark.parametrize("line", OF_FIRST)
def test_a_handler_that_asks_or_answers_for_the_first_request_only_is_found(tmp_path: Path, line: str) -> None:
    model = archive(tmp_path, line + ANSWER_ALL)
    calls = Calls(model)
    assert answered(model, calls, 1, 2, 3) == [1, 2, 3]
    assert answered(model, calls, 4, 5) == [4, 5]
    assert sizes() == [3, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("line", OF_EACH)
def test_a_handler_that_asks_and_answers_for_each_request_keeps_its_batch(tmp_path: Path, line: str) -> None:
    model = archive(tmp_path, line + ANSWER_ALL)
    assert answered(model, Calls(model), 1, 2, 3) == [1, 2, 3]
    assert sizes() == [3]


def test_a_first_request_that_happens_to_be_the_only_one_at_fault_costs_one_repetition(tmp_path: Path) -> None:
    body = "for idx, row in enumerate(data):\n    if row['body'] == 0:\n        context.set_response_status(422, 'No', idx)"
    model = archive(tmp_path, body + ANSWER_ALL)
    calls = Calls(model)
    for _ in range(2):
        assert answered(model, calls, 0, 1, 2) == [0, 1, 2]
    assert sizes() == [3, 1, 1, 1, 3]


def test_what_one_request_streams_reaches_no_other(tmp_path: Path) -> None:
    body = (
        "from ts.handler_utils.utils import send_intermediate_predict_response as send\n"
        "word = data[0]['body']\nsend([word] * size, context.request_ids, 'ok', 200, context)\nhandle.sent.append(size)\n"
        "out = ['.'] * size"
    )
    model = loaded(tmp_path, HANDLER.format(indent(body, "    ")) + "handle.sent = []\n")
    done = run_batch(model, [item(b'"a"'), item(b'"b"')], calls=Calls(model))
    assert [one.data for one in done.outcomes if isinstance(one, Output)] == [b"a.", b"b."]
    assert sys.modules["handler"].handle.sent == [1, 1]


def test_rows_look_like_a_list() -> None:
    rows = NotedRows([{"a": 1}, {"a": 2}])
    assert isinstance(rows, list)
    assert (len(rows), bool(rows), rows == [{"a": 1}, {"a": 2}], repr(rows)) == (2, True, True, "[{'a': 1}, {'a': 2}]")
    assert not rows.is_one_read
    assert rows.index({"a": 2}) == 1
    assert {"a": 2} in rows
