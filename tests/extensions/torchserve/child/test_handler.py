"""Handlers of archives in the child's runner: what they get, what becomes of what they return, raise and set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.handlers.contract import Failure
from penstock.inputs.form import FormPart, encode_form
from penstock.job import FORM_MEDIA, TENSORS_MEDIA, Call
from penstock.outputs.response_head import ResponseHead, split_head, split_prediction_message
from penstock.tensors.tensor import Tensor, decode_tensors, encode_tensors, texts_of
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.runner import infer, run_batch
from penstock.workers.child.shards.rows import complete_rows, prepare_rows
from penstock.workers.ipc.frames import Failed, Output
from tests.extensions.torchserve.child.archives import FACTS, failed, item, loaded, outcomes, output

# Does what each request's text says, once per request; `calls` is what each call of `handle` got.
ACTING = """
import ts.context
calls = []
class Acting:
    def initialize(self, context):
        self.context = context
    def handle(self, data, context):
        calls.append([row.get("body") for row in data])
        assert context is self.context
        out = []
        for idx, row in enumerate(data):
            names = {"context": context, "idx": idx, "row": row, "data": data}
            exec(row["body"], names)
            out.append(names["out"])
        return out
"""


def act(folder: Path, *texts: str) -> list[Output | Failed]:
    return outcomes(loaded(folder, ACTING), *(item(text.encode(), "text/plain") for text in texts))


@pytest.mark.parametrize(
    ("text", "media", "data"),
    [
        ("out = 'é'", "text/plain; charset=utf-8", "é".encode()),
        ("out = b'ab\\xff'", "application/octet-stream", b"ab\xff"),
        ("out = bytearray(b'ab')", "application/octet-stream", b"ab"),
        ("out = None", "application/json", b"null"),
        ("out = 1", "application/json", b"1"),
        ("out = []", "application/json", b"[]"),
        ("out = (1, 2)", "application/json", b"[\n  1,\n  2\n]"),
        ("out = {1: 2}", "application/json", b'{\n  "1": 2\n}'),
        ("out = {'a': [1], 'é': 1.5}", "application/json", b'{\n  "a": [\n    1\n  ],\n  "\\u00e9": 1.5\n}'),
        ("out = float('nan')", "text/plain; charset=utf-8", b"NaN"),
    ],
)
def test_an_entry_is_written_as_torchserve_writes_it(tmp_path: Path, text: str, media: str, data: bytes) -> None:
    [found] = act(tmp_path, text)
    assert isinstance(found, Output)
    assert found.data == data
    stored, head = split_head(found.content_type)
    assert stored == media
    assert head == (None if media == "application/json" else ResponseHead(untyped=True))


def test_a_tensor_is_what_torch_saves(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import io

    [found] = act(tmp_path, "import torch\nout = torch.ones(2)")
    assert isinstance(found, Output)
    assert torch.load(io.BytesIO(found.data), weights_only=True).tolist() == [1.0, 1.0]


def test_status_headers_and_content_type_are_those_of_each_request(tmp_path: Path) -> None:
    found = act(
        tmp_path,
        "context.set_response_status(422, 'Bad Thing', idx); context.set_response_header(idx, 'X-A', 1); out = {'e': 1}",
        "context.set_response_content_type(idx, 'image/png'); out = b'x'",
        "out = 'plain'",
        "context.request_processor[idx].report_status(201); out = 1",
    )
    assert [split_head(one.content_type) for one in found if isinstance(one, Output)] == [
        ("application/json", ResponseHead(422, "Bad Thing", {"X-A": "1"})),
        ("image/png", None),
        ("text/plain; charset=utf-8", ResponseHead(untyped=True)),
        ("application/json", ResponseHead(201)),
    ]


def test_headers_of_the_gateway_are_left_out_and_no_header_is_injected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, typed, bad, status = act(
        tmp_path,
        "context.set_response_header(idx, 'Content-Length', '3'); context.set_response_header(idx, 'X-A', 'b'); out = 1",
        "context.set_response_content_type(idx, 'no type'); out = 'x'",
        "context.set_response_header(idx, 'X-A\\r\\nX-B', 'b'); out = 1",
        "context.set_response_status(99, 'x', idx); out = 1",
    )
    assert isinstance(kept, Output)
    assert split_head(kept.content_type)[1] == ResponseHead(headers={"X-A": "b"})
    assert isinstance(typed, Output)
    assert split_head(typed.content_type) == ("text/plain; charset=utf-8", ResponseHead(untyped=True))
    assert failed(bad).code == failed(status).code == "handler_contract"
    assert "not the name of a header" in failed(bad).message
    assert "from 200 to 599, not 99" in failed(status).message
    said = capsys.readouterr().err
    assert "Content-Length" in said
    assert "'no type'" in said


def test_only_the_items_at_fault_fail(tmp_path: Path) -> None:
    model = loaded(tmp_path, ACTING)
    texts = [
        "out = 1",
        "raise ValueError('bad')",
        "out = 3",
        "from ts.service import PredictionException\nraise PredictionException('no such cat', 404)",
        "out = {1, 2}",
        "out = 6",
    ]
    found = outcomes(model, *(item(text.encode(), "text/plain") for text in texts))
    assert [one.data if isinstance(one, Output) else one.code for one in found] == [
        b"1",
        "handler_error",
        b"3",
        "prediction_exception",
        "bad_output_value",
        b"6",
    ]
    assert failed(found[1]).message == "ValueError: bad"
    assert split_prediction_message(failed(found[3]).message) == ("no such cat", 404)
    assert "cannot be written as JSON" in failed(found[4]).message


def test_a_prediction_exception_may_be_the_only_one_and_have_no_usual_status(tmp_path: Path) -> None:
    raising = "from ts.utils.util import PredictionException\nraise PredictionException('nope', {})"
    found = [failed(act(tmp_path, raising.format(code))[0]) for code in (500, 513, 200, "'x'")]
    assert [split_prediction_message(one.message) for one in found] == [
        ("nope", 500),
        ("nope", 513),
        ("nope", 500),
        ("nope", 500),
    ]
    assert {one.code for one in found} == {"prediction_exception"}
    assert found[0].kinds == ("PredictionException",)


@pytest.mark.parametrize(
    ("returned", "code"),
    [
        ("{'a': 1}", "bad_output_type"),
        ("('a',)", "bad_output_type"),
        ("'abc'", "bad_output_type"),
        ("None", "bad_output_type"),
        ("[]", "bad_output_length"),
        ("[1, 2]", "bad_output_length"),
    ],
)
def test_what_is_no_list_with_an_entry_per_request_has_a_code_of_its_own(tmp_path: Path, returned: str, code: str) -> None:
    model = loaded(tmp_path, f"def handle(data, context):\n    return {returned}\n")
    assert failed(outcomes(model, item(b"1"))[0]).code == code


def test_a_wrong_count_for_a_batch_is_right_for_its_items(tmp_path: Path) -> None:
    model = loaded(
        tmp_path, "def handle(data, context):\n    rows = [row['body'] for row in data or []]\n    return [sum(rows)] * 1\n"
    )
    assert [one.data for one in outcomes(model, *(item(str(n).encode()) for n in range(3))) if isinstance(one, Output)] == [
        b"0",
        b"1",
        b"2",
    ]


def test_memory_that_runs_out_for_a_batch_is_enough_for_its_items(tmp_path: Path) -> None:
    model = loaded(
        tmp_path,
        "def handle(data, context):\n    data = data or []\n    if len(data) > 2:\n        raise MemoryError\n"
        "    return [len(data) for _ in data]\n",
    )
    done = run_batch(model, [item(b"1")] * 4)
    assert [one.data for one in done.outcomes if isinstance(one, Output)] == [b"2"] * 4
    assert done.cap == 2


SEEING = """
def handle(data, context):
    if data is None:
        context.cache = ["from the first call"]
        return None
    return [
        {
            "headers": dict(context.get_all_request_header(idx)),
            "x": [context.get_request_header(idx, name) for name in ("X-Tenant", "x-tenant", "absent")],
            "id": context.get_request_id(idx),
            "ids": len(context.request_ids),
            "property": context.request_processor[idx].get_request_property("X-TENANT"),
            "sequence": context.get_sequence_id(idx),
            "cache": context.cache,
        }
        for idx in range(len(data))
    ]
"""


def test_the_context_tells_of_each_request(tmp_path: Path) -> None:
    model = loaded(tmp_path, SEEING)
    found = outcomes(
        model,
        item(b"1", headers={"x-tenant": "blue", "x-request-id": "r-1", "ts_request_sequence_id": "s"}),
        item(encode_form([FormPart("f", b"1", "text/plain", "a.txt")]), FORM_MEDIA),
    )
    first, second = (json.loads(one.data) for one in found if isinstance(one, Output))
    assert first == {
        "headers": {
            "body": {"content-type": "application/json"},
            "explain": "False",
            "url_path": "",
            "x-tenant": "blue",
            "x-request-id": "r-1",
            "ts_request_sequence_id": "s",
        },
        "x": ["blue", "blue", None],
        "id": "r-1",
        "ids": 2,
        "property": "blue",
        "sequence": "s",
        "cache": ["from the first call"],
    }
    assert (second["id"], second["x"], second["headers"]["f"]) == (FACTS.job, [None] * 3, {"content-type": "text/plain"})


def test_the_context_tells_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "model-config.yaml").write_text("batchSize: 4\nhandler:\n  top: 3\n")
    source = (
        "import os, sys\ndef handle(data, context):\n"
        "    said = [context.model_name, context.manifest, context.system_properties, context.model_yaml_config]\n"
        "    rest = [os.getcwd(), sys.path[0], __name__, context.get_request_id(7)]\n"
        "    return [said + rest for _ in data or []]\n"
    )
    model = loaded(tmp_path, source, configFile="model-config.yaml", serializedFile=None)
    name, manifest, properties, config, folder, path, module, absent = json.loads(output(model, item(b"1")).data)
    assert name == "mine"
    assert manifest["model"]["handler"] == "handler.py"
    assert properties == {
        "model_dir": str(tmp_path),
        "gpu_id": None,
        "batch_size": 8,
        "server_name": "MMS",
        "server_version": "0.12.0",
        "limit_max_image_pixels": True,
    }
    assert config == {"batchSize": 4, "handler": {"top": 3}}
    assert (folder, path, module, absent) == (str(tmp_path), str(tmp_path), "handler", None)


ASKED = """
class Asked:
    def handle(self, data, context):
        if context.get_request_header(0, "describe") == "True":
            return [{"described": len(data)}]
        if context.get_request_header(0, "explain") == "True":
            return [["explained", data[0]["body"]]]
        return [["predicted", row["body"], len(data)] for row in data]
"""


def test_explanations_and_descriptions_share_no_call(tmp_path: Path) -> None:
    model = loaded(tmp_path, ASKED)
    found = outcomes(
        model,
        item(b"1"),
        item(b"2", headers={"explain": "True"}),
        item(b"3"),
        item(b"", headers={"describe": "True"}),
        item(b"5", headers={"explain": "True"}),
        item(b"6", call=Call.EXPLAIN),
    )
    assert [json.loads(one.data) for one in found if isinstance(one, Output)] == [
        ["predicted", 1, 2],
        ["explained", 2],
        ["predicted", 3, 2],
        {"described": 1},
        ["explained", 5],
        ["explained", 6],
    ]


def test_a_handler_that_reads_the_first_row_gets_its_rows_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (
        "calls = []\nclass Mine:\n    def handle(self, data, context):\n        calls.append(len(data))\n"
        "        return [data[0]['body']] * len(data)\n"
    )
    model = loaded(tmp_path, source)
    calls = Calls(model)
    for planned in (1, 4, 4):
        done = run_batch(model, [item(str(n).encode()) for n in range(4)], calls=calls)
        assert [one.data for one in done.outcomes if isinstance(one, Output)] == [b"0", b"1", b"2", b"3"]
        assert done.calls == planned
    import sys

    assert sys.modules["handler"].calls == [4, *[1] * 12]
    said = "torchserve_runs_one_by_one: it reads one request of a batch only; its rows run one by one from now on"
    assert capsys.readouterr().err.splitlines() == [said]


def test_rows_of_a_run_are_values_and_bytes(tmp_path: Path) -> None:
    model = loaded(tmp_path, ACTING)
    calls = Calls(model)
    rows = ["out = {'a': (1, 2)}", "out = 'text'", "out = b'x'", "raise ValueError('bad')", "out = float('nan')"]
    flow = prepare_rows(model, "text/plain", [row.encode() for row in rows], calls, facts=FACTS)
    infer(model, flow, calls)
    found: list[Any] = complete_rows(model, flow).outputs
    assert found[:3] == [{"a": [1, 2]}, "text", b"x"]
    assert isinstance(found[3], Failure)
    assert found[4] == "NaN"


def test_who_sends_tensors_gets_the_response_as_the_element_of_one(tmp_path: Path) -> None:
    model = loaded(
        tmp_path, "def handle(data, context):\n    return [repr(row['body']['inputs'][0]['data']) for row in data or []]\n"
    )
    sent = encode_tensors([Tensor("x", "INT64", (1,), (7).to_bytes(8, "little"))])
    found = output(model, item(sent, TENSORS_MEDIA))
    [tensor] = decode_tensors(found.data)
    assert tensor.content_type == "text/plain; charset=utf-8"
    assert texts_of(tensor) == [b"[7]"]


def test_a_handler_may_change_what_it_returned(tmp_path: Path) -> None:
    source = (
        "class Mine:\n    kept = {}\n    def handle(self, data, context):\n        out = []\n        for row in data:\n"
        "            self.kept['n'] = row['body']\n            out.append(self.kept)\n        return out\n"
    )
    model = loaded(tmp_path, source)
    assert [json.loads(output(model, item(str(n).encode())).data) for n in range(2)] == [{"n": 0}, {"n": 1}]
