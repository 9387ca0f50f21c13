from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from penstock.extensions.openai.runs.batch import OpenAISink, OpenAISource
from penstock.extensions.openai.runs.lines import LINES_ALLOWED, InvalidBatch
from penstock.extensions.openai.runs.run import kind
from penstock.run import RunCounts, RunSpec, RunState
from penstock.runs.publishing import write_unreached
from penstock.runs.rows import ResultBatch, RowBatch, RowError

JOBS = "/v1/models/square/jobs"
EMBEDDINGS = "/v1/embeddings"


def line(custom_id: str, body: Any, url: str = JOBS, **more: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}


def spec_of(folder: Path, lines: list[Any], endpoint: str = JOBS, **more: Any) -> RunSpec:
    path = folder / "in.jsonl"
    path.write_text("".join((text if isinstance(text, str) else json.dumps(text)) + "\n" for text in lines))
    model = "square" if endpoint == JOBS else "embedder"
    return RunSpec(
        model=model,
        kind="openai",
        input=str(path),
        output=str(folder / "out" / "content.jsonl"),
        errors=str(folder / "err" / "content.jsonl"),
        endpoint=endpoint,
        **more,
    )


def faults(spec: RunSpec) -> list[tuple[int | None, str, str | None]]:
    with pytest.raises(InvalidBatch) as refused:
        OpenAISource(spec).open()
    return [(fault["line"], fault["code"], fault["param"]) for fault in refused.value.errors]


def batches(source: OpenAISource, *, rows: int, after: dict[str, Any] | None = None) -> list[RowBatch]:
    found = []
    while (batch := source.read(after, rows=rows, size_bytes=1 << 20)) is not None:
        found.append(batch)
        after = json.loads(json.dumps(batch.after))
    return found


def answered(batch: RowBatch, outputs: list[Any], failed: dict[int, RowError] | None = None) -> ResultBatch:
    return ResultBatch(batch.first, outputs, batch.carried, failed or {})


def read(path: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in Path(path).read_text().splitlines()]


def test_every_fault_is_told_with_its_line(tmp_path: Path) -> None:
    lines = [
        line("a", {"x": 1}),
        "no json",
        line("a", {"x": 2}),
        line("b", {"x": 2}, method="GET"),
        line("c", {"x": 2}, url=EMBEDDINGS),
        {"custom_id": "d", "method": "POST", "url": JOBS},
        line("", {}),
        [],
    ]
    assert faults(spec_of(tmp_path, lines)) == [
        (2, "invalid_json_line", None),
        (3, "duplicate_custom_id", "custom_id"),
        (4, "invalid_method", "method"),
        (5, "mismatched_url", "url"),
        (6, "missing_body", "body"),
        (7, "invalid_custom_id", "custom_id"),
        (8, "invalid_json_line", None),
    ]


def test_lines_of_embeddings_name_one_model_and_an_input(tmp_path: Path) -> None:
    good = {"model": "embedder", "input": "x"}
    lines = [
        line("a", good, EMBEDDINGS),
        line("b", {**good, "model": "other"}, EMBEDDINGS),
        line("c", {"model": "embedder"}, EMBEDDINGS),
        line("d", {**good, "stream": True}, EMBEDDINGS),
    ]
    assert faults(spec_of(tmp_path, lines, EMBEDDINGS)) == [
        (2, "mismatched_model", "body.model"),
        (3, "invalid_body", "body.input"),
        (4, "invalid_body", "body.stream"),
    ]


def test_a_file_of_too_many_lines_or_none_is_refused(tmp_path: Path) -> None:
    many = spec_of(tmp_path, [line(str(n), n) for n in range(4)], metadata={LINES_ALLOWED: "3"})
    assert faults(many) == [(4, "too_many_lines", None)]
    assert faults(spec_of(tmp_path, [])) == [(None, "empty_file", None)]


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_the_rows_are_the_inputs_of_the_lines_however_they_are_read(tmp_path: Path, rows: int) -> None:
    lines = [
        line("a", {"model": "embedder", "input": "one"}, EMBEDDINGS),
        line("b", {"model": "embedder", "input": [f"b{n}" for n in range(5)]}, EMBEDDINGS),
        line("c", {"model": "embedder", "input": [1, 2, 3]}, EMBEDDINGS),
    ]
    source = OpenAISource(spec_of(tmp_path, lines, EMBEDDINGS)).open()
    found = batches(source, rows=rows)
    assert [value for batch in found for value in batch.inputs] == ["one", "b0", "b1", "b2", "b3", "b4", [1, 2, 3]]
    assert [value for batch in found for value in batch.carried["custom_id"]] == ["a", *"bbbbb", "c"]
    assert [batch.first for batch in found] == [sum(map(len, found[:place])) for place in range(len(found))]
    assert all(len(batch) <= rows for batch in found)
    assert source.count() == 7


def test_answers_and_failures_go_to_their_files_and_are_seen_only_when_published(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, [line(name, {"x": 1}) for name in "abc"])
    [batch] = batches(OpenAISource(spec), rows=10)
    sink = OpenAISink(spec)
    sink.restore(None)
    sink.append(answered(batch, [{"y": 1}, None, b"\x00"], {1: RowError("invalid_input", "no")}))
    sink.commit()
    assert not Path(spec.output).exists()
    published = sink.publish()
    assert published["lines"] == {"total": 3, "completed": 2, "failed": 1}
    first, third = read(spec.output)
    assert first["response"] == {"status_code": 200, "request_id": first["id"], "body": {"y": 1}}
    assert (first["custom_id"], first["error"], third["response"]["body"]) == ("a", None, {"x_base64": "AA=="})
    [wrong] = read(spec.errors)
    assert (wrong["custom_id"], wrong["response"], wrong["error"]) == ("b", None, {"code": "invalid_input", "message": "no"})


def test_a_file_with_nothing_in_it_is_not_published(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, [line("a", 1)])
    sink = OpenAISink(spec)
    sink.restore(None)
    sink.append(answered(batches(OpenAISource(spec), rows=1)[0], [1]))
    assert sink.publish()["errors"] is None
    assert list(Path(spec.errors).parent.iterdir()) == []


@pytest.mark.parametrize("cut", range(8))
def test_a_sink_restored_at_any_row_writes_what_one_that_was_never_stopped_does(tmp_path: Path, cut: int) -> None:
    """A sink can also be restored within a line of several inputs, without losing the answers that this line already has."""
    lines = [
        line("a", {"model": "embedder", "input": ["x", "y", "z"], "encoding_format": "base64"}, EMBEDDINGS),
        line("b", {"model": "embedder", "input": ["x", "y"]}, EMBEDDINGS),
        line("c", {"model": "embedder", "input": ["x", "y"]}, EMBEDDINGS),
    ]
    outputs: list[Any] = [[1.0], [2.0], [3.0], [4.0], None, [6.0], [7.0]]
    fault = RowError("handler_error", "broken")

    def written(spec: RunSpec, stop_at: int) -> tuple[bytes, bytes]:
        rows = batches(OpenAISource(spec), rows=1)
        sink, mark = OpenAISink(spec), None
        sink.restore(None)
        for place, row in enumerate(rows):
            if place == stop_at:
                mark = json.loads(json.dumps(sink.commit()))
                sink.append(answered(row, [[9.0]]))
                sink.close()
                sink = OpenAISink(spec)
                sink.restore(mark)
            failed = {0: fault} if outputs[place] is None else {}
            sink.append(answered(row, [outputs[place]], failed))
        sink.publish()
        return Path(spec.output).read_bytes(), Path(spec.errors).read_bytes()

    whole = written(spec_of(tmp_path, lines, EMBEDDINGS), -1)
    again = written(spec_of(tmp_path, lines, EMBEDDINGS), cut)
    assert again == whole
    first, third = (json.loads(text) for text in whole[0].splitlines())
    packed = [base64.b64encode(struct.pack("<f", number)).decode() for number in (1.0, 2.0, 3.0)]
    assert [item["embedding"] for item in first["response"]["body"]["data"]] == packed
    assert [item["index"] for item in third["response"]["body"]["data"]] == [0, 1]
    assert json.loads(whole[1])["error"]["code"] == "handler_error"


def test_an_answer_that_is_no_vector_fails_its_line(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, [line("a", {"model": "embedder", "input": "x"}, EMBEDDINGS)], EMBEDDINGS)
    sink = OpenAISink(spec)
    sink.restore(None)
    sink.append(answered(batches(OpenAISource(spec), rows=1)[0], [{"y": 16}]))
    sink.publish()
    assert read(spec.errors)[0]["error"]["code"] == "not_an_embedding"


def test_lines_that_an_expired_batch_did_not_come_to_say_so(tmp_path: Path) -> None:
    """Regression: they counted as failed."""
    spec = spec_of(tmp_path, [line(name, 1) for name in "abcd"])
    source, sink = OpenAISource(spec), OpenAISink(spec)
    sink.restore(None)
    first = batches(source, rows=1)[0]
    sink.append(answered(first, [1]))
    error = kind.unreached[RunState.EXPIRED]
    assert write_unreached(source, sink, first.after, RunCounts(done=1), error, written=1) == RunCounts(total=4, done=1)
    assert sink.publish()["lines"] == {"total": 4, "completed": 1, "failed": 0}
    assert [(line["custom_id"], line["error"]["code"]) for line in read(spec.errors)] == [
        (name, "batch_expired") for name in "bcd"
    ]


def test_a_line_that_is_not_utf8_is_a_fault_with_its_number(tmp_path: Path) -> None:
    """The error left the source unnamed: the batch stayed `validating`, and a runner broke on it every 15 seconds."""
    spec = spec_of(tmp_path, [line("a", {"x": 1})])
    with Path(spec.input).open("ab") as file:
        file.write(b'{"custom_id": "b", "method": "POST", "url": "/v1/models/square/jobs", "body": {"x": "\xff"}}\n')
    assert faults(spec) == [(2, "invalid_json_line", None)]
    with pytest.raises(InvalidBatch, match="line 2: the line is not UTF-8"):
        OpenAISource(spec).open()
