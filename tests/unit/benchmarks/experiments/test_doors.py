from __future__ import annotations

import json

import pytest

pytest.importorskip("grpc")

from benchmarks.experiments.doors import frames
from benchmarks.experiments.doors.__main__ import grpc_message, own_request, rest_request, tensor_of
from benchmarks.experiments.doors.report import PAGE, RESULTS, put_in, table
from penstock.errors import BadRequest
from penstock.extensions.oip.gateway.infer_request import read_infer_request
from penstock.extensions.oip.grpc.messages import infer_request, split_request


def test_every_door_is_sent_the_same_bytes() -> None:
    tensor = tensor_of(4_096)
    assert own_request(1, tensor).endswith(bytes(tensor.data))
    body = rest_request(1, tensor).partition(b"\r\n\r\n")[2]
    rest = read_infer_request(body, len(body) - 4_096, max_json_bytes=4_096, max_depth=64)
    grpc = infer_request(*split_request(grpc_message(tensor), max_bytes=4_096))
    assert bytes(rest.tensors[0].data) == bytes(grpc.tensors[0].data) == bytes(tensor.data)


def test_frames_are_found_whole_and_the_rest_is_kept() -> None:
    data = frames.frame(frames.SETTINGS, data=b"\0\4\0\0\0\7") + frames.frame(frames.DATA, 5, b"ab", flags=1)
    found, rest = frames.frames_in(data[:-1])
    assert frames.settings_in(found[0]) == {frames.INITIAL_WINDOW: 7}
    assert (len(found), rest) == (1, data[15:-1])
    found, rest = frames.frames_in(data)
    assert (found[1].stream, bytes(found[1].data), found[1].flags, rest) == (5, b"ab", 1, b"")


def test_a_long_value_of_a_header_has_its_length() -> None:
    assert frames.call_head("/a", metadata=(("x", "b" * 300),)).endswith(b"\0\1x\x7f\xad\1" + b"b" * 300)


def test_the_page_shows_the_saved_figures() -> None:
    saved = json.loads(RESULTS.read_text("utf-8"))
    assert table(saved) in PAGE.read_text("utf-8"), "run `python -m benchmarks.experiments.doors --docs`"
    with pytest.raises(BadRequest, match="no place for the table"):
        put_in("", saved)
