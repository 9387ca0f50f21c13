from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson

from penstock.extensions.oip.gateway.infer_answer import InferResult, answer_body
from penstock.extensions.oip.gateway.infer_request import InferRequest, read_infer_request
from penstock.job import JobId
from penstock.tensors.tensor import Tensor, decode_tensors, encode_tensors

MIB = 1024 * 1024
SIZE = 4 * MIB


def most_bytes(step: Callable[[], Any]) -> int:
    """The most memory that the step holds at once beyond what there was."""
    tracemalloc.start()
    try:
        kept = step()
        assert kept
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_binary_tensors_of_four_megabytes_are_copied_once_in_and_once_out() -> None:
    given = {"name": "x", "shape": [SIZE // 4], "datatype": "FP32", "parameters": {"binary_data_size": SIZE}}
    head = orjson.dumps({"inputs": [given], "parameters": {"binary_data_output": True}})
    body = head + bytes(SIZE)

    def stored() -> bytes:
        return encode_tensors(read_infer_request(body, len(head), max_json_bytes=MIB, max_depth=64).tensors)

    stored()
    # msgspec enlarges its buffer in steps, and the last step may leave a quarter of it empty for a moment.
    assert most_bytes(stored) < 2.5 * SIZE
    payload = encode_tensors([Tensor("x", "FP32", (SIZE // 4,), bytes(SIZE))])

    def answered() -> bytes:
        result = InferResult("m", "1", JobId("0" * 26, "m"), tuple(decode_tensors(payload)))
        return answer_body(InferRequest((), binary=True), result)[0]

    assert most_bytes(answered) < 1.1 * SIZE
