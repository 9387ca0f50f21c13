"""Service envelopes: what TorchServe 0.12 was seen to hand on and to answer, and what it fails at with a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.handlers.loaded import Loaded
from penstock.outputs.response_head import split_head
from penstock.workers.ipc.frames import Output
from tests.extensions.torchserve.child.archives import failed, item, loaded, outcomes

ECHO = """
class Echo:
    def handle(self, data, context):
        return [{"saw": repr(one), "n": len(data)} for one in data]
"""
FIXED = "class Fixed:\n    def handle(self, data, context):\n        return {} if list(data) else None\n"
TWO = [{"a": 1}, {"a": 2}]


def answers(folder: Path, envelope: str, source: str, *bodies: Any, headers: dict[str, str] | None = None) -> list[Any]:
    model = loaded(folder, source, options={"service_envelope": envelope})
    return [read(one) for one in outcomes(model, *(item(json.dumps(body).encode(), headers=headers) for body in bodies))]


def read(outcome: Any) -> Any:
    return json.loads(outcome.data) if isinstance(outcome, Output) else outcome.code


def returning(folder: Path, envelope: str, returned: str) -> Loaded:
    return loaded(folder, FIXED.format(returned), options={"service_envelope": envelope})


def test_body_hands_on_the_bodies(tmp_path: Path) -> None:
    assert answers(tmp_path, "body", ECHO, {"instances": TWO}, [1, 2]) == [
        {"saw": "{'instances': [{'a': 1}, {'a': 2}]}", "n": 2},
        {"saw": "[1, 2]", "n": 2},
    ]


def test_json_joins_the_instances_of_all_requests_and_splits_the_answers(tmp_path: Path) -> None:
    found = answers(tmp_path, "json", ECHO, {"instances": TWO}, {"instances": [3]}, {"instances": [{"b64": "aGk="}]}, [1])
    # The bad request is found by halving, so that the first two were in one call of three instances.
    assert found == [
        {"predictions": [{"saw": "{'a': 1}", "n": 3}, {"saw": "{'a': 2}", "n": 3}]},
        {"predictions": [{"saw": "3", "n": 3}]},
        {"predictions": [{"saw": "b'hi'", "n": 1}]},
        "handler_error",
    ]


def test_json_is_written_in_one_line_as_torchserve_does(tmp_path: Path) -> None:
    model = loaded(tmp_path, ECHO, options={"service_envelope": "json"})
    [found] = outcomes(model, item(b'{"instances": [1]}'))
    assert isinstance(found, Output)
    assert found.data == b'{"predictions": [{"saw": "1", "n": 1}]}'
    assert split_head(found.content_type)[0] == "application/json"


def test_json_with_a_wrong_count_of_answers_is_refused(tmp_path: Path) -> None:
    [found] = outcomes(returning(tmp_path, "json", "[[1, 2], [3, 4]]"), item(b'{"instances": [1]}'))
    assert failed(found).code == "bad_output_length"


def test_kserve_answers_each_request_with_what_was_asked(tmp_path: Path) -> None:
    assert answers(tmp_path, "kserve", ECHO, {"instances": TWO}, {"instances": [1]}) == [
        {"predictions": [{"saw": "{'a': 1}", "n": 2}, {"saw": "{'a': 2}", "n": 2}]},
        {"predictions": [{"saw": "1", "n": 1}]},
    ]
    explained = answers(tmp_path, "kserve", ECHO, {"instances": [1]}, headers={"explain": "True"})
    assert explained == [{"explanations": [{"saw": "1", "n": 1}]}]


def test_kserve_takes_any_number_of_answers_but_a_list(tmp_path: Path) -> None:
    assert json.loads(split(returning(tmp_path / "a", "kserve", "[[1, 2], [3, 4]]"), b'{"instances": ["x"]}')) == {
        "predictions": [[1, 2], [3, 4]]
    }
    [found] = outcomes(returning(tmp_path / "b", "kserve", "None"), item(b'{"instances": ["x"]}'))
    assert failed(found).code == "bad_output_type"


def split(model: Loaded, body: bytes) -> bytes:
    [found] = outcomes(model, item(body))
    assert isinstance(found, Output), found
    return found.data


INPUTS = {
    "id": "q",
    "inputs": [
        {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]},
        {"name": "y", "shape": [1], "datatype": "INT64", "data": [3]},
    ],
}


@pytest.mark.parametrize(
    ("returned", "outputs"),
    [
        (
            "[[1, 2], [3, 4]]",
            [
                {"name": "x", "datatype": "INT64", "data": [1, 2], "shape": [2]},
                {"name": "y", "datatype": "INT64", "data": [3, 4], "shape": [2]},
            ],
        ),
        ("[[[1.5, 2.5]]]", [{"name": "x", "datatype": "FP64", "data": [1.5, 2.5], "shape": [1, 2]}]),
        ("['abc']", [{"name": "x", "datatype": "BYTES", "data": ["abc"], "shape": [1]}]),
        ("[[True]]", [{"name": "x", "datatype": "BOOL", "data": [True], "shape": [1]}]),
    ],
)
def test_kservev2_names_outputs_after_inputs(tmp_path: Path, returned: str, outputs: list[Any]) -> None:
    found = json.loads(split(returning(tmp_path, "kservev2", returned), json.dumps(INPUTS).encode()))
    assert list(found) == ["id", "model_name", "model_version", "outputs"]
    assert found == {"id": "q", "model_name": "mine", "model_version": "1.0", "outputs": outputs}
    assert list(found["outputs"][0]) == ["name", "datatype", "data", "shape"]


def test_kservev2_hands_on_inputs_in_their_shape_one_request_at_a_time(tmp_path: Path) -> None:
    source = "class Echo:\n    def handle(self, data, context):\n        return [repr(one['data']) for one in data]\n"
    other = {"inputs": [{"name": "z", "shape": [], "datatype": "INT64", "data": [7]}]}
    first, second = answers(tmp_path, "kservev2", source, INPUTS, other)
    assert [one["data"] for one in first["outputs"]] == [["[[1, 2]]"], ["[3]"]]
    assert ([one["data"] for one in second["outputs"]], second["id"]) == ([["7"]], "job-1")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"instances": [1]}, "handler_error"),
        ({"inputs": [{"name": "x", "shape": [3], "datatype": "INT64", "data": [1]}]}, "handler_error"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}]}, "bad_output_length"),
    ],
)
def test_kservev2_refuses_what_does_not_fit(tmp_path: Path, body: Any, code: str) -> None:
    model = returning(tmp_path, "kservev2", "[[1], [2]]")
    [found] = outcomes(model, item(json.dumps(body).encode()))
    assert failed(found).code == code


def test_a_handler_that_reads_one_instance_gets_them_one_by_one(tmp_path: Path) -> None:
    source = "class Mine:\n    def handle(self, data, context):\n        return [[data[0], len(data)]]\n"
    found = answers(tmp_path, "json", source, {"instances": [5, 6]}, {"instances": [7]})
    assert found == [{"predictions": [[5, 1], [6, 1]]}, {"predictions": [[7, 1]]}]


def test_an_envelope_of_the_archives_own_can_be_written(tmp_path: Path) -> None:
    from penstock.extensions.torchserve.child.envelopes import BaseEnvelope

    bare = BaseEnvelope(lambda data, context: data)
    with pytest.raises(NotImplementedError, match="parse_input"):
        bare.handle([{}], None)
