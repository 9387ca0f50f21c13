"""What a handler sends before its answers, as chunks of each request's stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.handlers.loaded import Loaded
from penstock.outputs.response_head import ResponseHead, split_head
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.reports import ReportSender
from penstock.workers.child.runner import complete, infer, prepare
from penstock.workers.ipc.frames import FromChild, ItemReports, Outcome, Output
from tests.extensions.torchserve.child.archives import failed, item, loaded, output

HEAD = """
from ts.handler_utils.utils import send_intermediate_predict_response as send
class Mine:
    def handle(self, data, context):
        def say(*chunks):
            send(list(chunks), context.request_ids, "ok", 200, context)
"""


def saying(folder: Path, *lines: str) -> Loaded:
    return loaded(folder, HEAD + "".join(f"        {line}\n" for line in lines))


def streamed(model: Loaded, count: int) -> tuple[list[list[Any]], list[Outcome]]:
    """The chunks per item, those of the last beginning alone, and the outcomes."""
    frames: list[FromChild] = []
    sender = ReportSender(frames.append, start_thread=lambda work: None)
    model.context.running.reporter = sender
    calls = Calls(model)
    flow = prepare(model, [item(str(number).encode()) for number in range(count)], calls)
    flow.batch = 1
    infer(model, flow, calls)
    sender.end(1)
    chunks: list[list[Any]] = [[] for _ in range(count)]
    for frame in frames:
        assert isinstance(frame, ItemReports)
        for report in frame.reports:
            chunks[report.place] += map(json.loads, report.chunks)
    return chunks, complete(model, flow).outcomes


def test_each_request_gets_its_chunks_and_its_answer_last(tmp_path: Path) -> None:
    model = saying(
        tmp_path,
        "say(*(f'{row[\"body\"]} ' for row in data))",
        "say(*([row['body']] for row in data))",
        "return [b'\\xff' for row in data]",
    )
    assert model.info().streams
    chunks, found = streamed(model, 2)
    assert chunks == [["0 ", [0], {"$bytes": "/w=="}], ["1 ", [1], {"$bytes": "/w=="}]]
    assert [one.data for one in found if isinstance(one, Output)] == [b"0 [\n  0\n]\xff", b"1 [\n  1\n]\xff"]


def test_status_and_headers_are_those_of_the_first_chunk(tmp_path: Path) -> None:
    model = saying(
        tmp_path,
        "context.set_response_status(201, 'Begun'); context.set_response_content_type(0, 'text/csv')",
        "say('a,')",
        "context.set_response_status(500, 'late'); context.set_response_header(0, 'x-late', '1')",
        "return ['b']",
    )
    [chunks], [found] = streamed(model, 1)
    begun = ResponseHead(201, "Begun")
    assert split_head(chunks[0]["$head"]) == ("text/csv", begun)
    assert chunks[1:] == ["a,", "b"]
    assert isinstance(found, Output)
    assert (found.data, split_head(found.content_type)) == (b"a,b", ("text/csv", begun))


def test_a_stream_with_a_status_and_no_type_has_none(tmp_path: Path) -> None:
    [chunks], _ = streamed(saying(tmp_path, "context.set_response_status(202)", "say('a')", "return ['b']"), 1)
    assert split_head(chunks[0]["$head"])[1] == ResponseHead(202, untyped=True)


def test_a_text_that_is_streamed_has_no_type(tmp_path: Path) -> None:
    chunks, [found] = streamed(saying(tmp_path, "say('a')", "return ['b']"), 1)
    assert chunks == [["a", "b"]]
    assert isinstance(found, Output)
    assert split_head(found.content_type) == ("text/plain; charset=utf-8", ResponseHead(untyped=True))


def test_a_repeated_call_begins_its_streams_anew(tmp_path: Path) -> None:
    model = saying(
        tmp_path,
        "say(*('x' for row in data))",
        "if len(data) > 1:",
        "    raise ValueError('too many')",
        "return ['end' for row in data]",
    )
    chunks, found = streamed(model, 2)
    assert chunks == [["x", "end"], ["x", "end"]]
    assert [one.data for one in found if isinstance(one, Output)] == [b"xend", b"xend"]


def test_a_handler_that_fails_within_its_stream_fails_its_job(tmp_path: Path) -> None:
    [chunks], [found] = streamed(saying(tmp_path, "say('a')", "raise ValueError('x')"), 1)
    assert chunks == ["a"]
    assert failed(found).code == "handler_error"


def test_too_few_chunks_are_refused_and_more_are_left(tmp_path: Path) -> None:
    _, [found] = streamed(saying(tmp_path / "few", "say()", "return ['a']"), 1)
    assert failed(found).code == "bad_output_length"
    chunks, _ = streamed(saying(tmp_path / "more", "say('a', 'b')", "return ['c']"), 1)
    assert chunks == [["a", "c"]]


def test_a_stream_has_a_bound(tmp_path: Path) -> None:
    model = saying(tmp_path, "for _ in range(100):", "    say('x' * 10_000)", "return ['end']")
    model.context.running.stream_bytes = 50_000
    [chunks], [found] = streamed(model, 1)
    assert len(chunks) < 6
    assert failed(found).code == "stream_too_large"


def test_without_a_worker_the_output_is_all_that_was_sent(tmp_path: Path) -> None:
    assert output(saying(tmp_path, "say('a')", "return ['b']"), item(b"1")).data == b"ab"


def test_a_context_of_no_handler_is_no_stream() -> None:
    from penstock.extensions.torchserve.child.streaming import send_intermediate_predict_response

    send_intermediate_predict_response(["a"], {0: "r"}, "ok", 200)
