"""JSON Lines from a source to a sink, interrupted at random points and resumed."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import Conflict
from penstock.extensions.openai.runs.batch import OpenAISource
from penstock.run import RunSpec
from penstock.runs.journal import Header, Journal, JournalEntry, refuse_changed
from penstock.runs.rows import ResultBatch, RowBatch, RowError, RowSource
from penstock.runs.sinks.opening import open_sink
from penstock.runs.sources.folder import FolderSource
from penstock.runs.sources.opening import open_source
from tests.eventually import eventually

WORDS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.text())
LINES = [b'{"id": 1, "text": "one"}', b'{"id": 2, "te', b"", b'{"id": 3}', b"[1,", b"2]", b"7 8", b'{"id": 4, "text": "\xff"}']


def spec_of(folder: Path, **more: Any) -> RunSpec:
    return RunSpec(**{"model": "m", "input": str(folder / "in.jsonl"), "output": str(folder / "out.jsonl")} | more)


def read_once(spec: RunSpec, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> RowBatch | None:
    with closing(open_source(spec)) as source:
        return source.read(after, rows=rows, size_bytes=size_bytes)


def read_all(spec: RunSpec, *, rows: int = 3, size_bytes: int = 1 << 20) -> tuple[list[Any], dict[int, RowError]]:
    """Read every batch with a new source, to which only `after` is passed on."""
    inputs: list[Any] = []
    bad: dict[int, RowError] = {}
    after = None
    while (batch := read_once(spec, after, rows=rows, size_bytes=size_bytes)) is not None:
        assert batch.first == len(inputs)
        bad |= {batch.first + place: error for place, error in batch.bad.items()}
        inputs += batch.inputs
        after = msgspec.json.decode(msgspec.json.encode(batch.after))
    return inputs, bad


def test_bad_lines_are_rows_with_a_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(LINES) + b"\n")
    inputs, bad = read_all(spec_of(tmp_path, columns={"": "text"}))
    assert inputs == ["one", None, None, None, None, None, None, None]
    assert [bad[row].code for row in sorted(bad)] == ["invalid_input"] * 2 + ["missing_column"] + ["invalid_input"] * 4
    assert bad[1].message.startswith("line 2 is not JSON")
    assert bad[2].message == "line 3 is empty"
    assert bad[3].message == "the row has no column 'text'"
    assert "UTF-8" in bad[7].message


def test_values_that_span_lines_never_pass_for_rows(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"[1,\n2]\n3 4\n")
    inputs, bad = read_all(spec_of(tmp_path))
    assert inputs == [None, None, None]
    assert sorted(bad) == [0, 1, 2]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.one_of(WORDS, st.lists(st.integers()), st.dictionaries(st.text(), st.text())), max_size=30),
    rows=st.integers(1, 7),
    size_bytes=st.integers(1, 100),
    newline=st.booleans(),
)
def test_json_lines_come_out_as_they_went_in_at_every_border(
    tmp_path: Path, values: list[Any], rows: int, size_bytes: int, newline: bool
) -> None:
    body = b"\n".join(msgspec.json.encode(value) for value in values) + (b"\n" if newline and values else b"")
    (tmp_path / "in.jsonl").write_bytes(body)
    assert read_all(spec_of(tmp_path), rows=rows, size_bytes=size_bytes) == (values, {})


def test_a_line_over_the_limit_is_a_bad_row_and_the_next_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runs.sources.lines.BLOCK_BYTES", 16)
    monkeypatch.setattr("penstock.runs.sources.lines.LineFile.__init__.__defaults__", (40, None, None, None, b"", 0, False))
    (tmp_path / "in.jsonl").write_bytes(b'"short"\n"' + b"x" * 200 + b'"\n"behind"\n"' + b"y" * 50 + b'"')
    inputs, bad = read_all(spec_of(tmp_path))
    assert inputs == ["short", None, "behind", None]
    assert {row: error.code for row, error in bad.items()} == {1: "too_large", 3: "too_large"}


def results(first: int, count: int) -> ResultBatch:
    """Return results in which every seventh row failed."""
    failed = {
        place: RowError("handler_error", f"row {first + place} is bad") for place in range(count) if (first + place) % 7 == 3
    }
    outputs = [None if place in failed else {"square": (first + place) ** 2} for place in range(count)]
    return ResultBatch(first, outputs, {"id": [f"r{first + place}" for place in range(count)]}, failed)


def write_through(spec: RunSpec, rows: int, chances: random.Random | None) -> dict[str, Any]:
    """Write `rows` rows; with `chances`, stop at random points and continue from the last commit."""
    mark: dict[str, Any] | None = None
    while True:
        sink = open_sink(spec, "r1", state=Path(spec.output).parent)
        sink.restore(mark)
        done = mark["rows"] if mark else 0
        while done < rows:
            count = min(chances.randint(1, 9) if chances else 5, rows - done)
            sink.append(results(done, count))
            done += count
            if chances and chances.random() < 0.3:
                mark = sink.commit()
            if chances and chances.random() < 0.1:
                sink.rows.sync()
                sink.close()
                break
        else:
            return sink.publish()


@pytest.mark.parametrize("seed", range(10))
def test_an_output_written_with_crashes_equals_one_written_without(tmp_path: Path, seed: int) -> None:
    one = write_through(spec_of(tmp_path, output=str(tmp_path / "whole.jsonl")), 200, None)
    other = write_through(spec_of(tmp_path, output=str(tmp_path / "broken.jsonl")), 200, random.Random(seed))
    for name in ("", ".errors.jsonl"):
        assert (tmp_path / f"whole.jsonl{name}").read_bytes() == (tmp_path / f"broken.jsonl{name}").read_bytes()
    assert one["output"]["sha256"] == other["output"]["sha256"]
    assert (one["output"]["rows"], one["errors"]["rows"]) == (200, 29)


def test_a_failed_row_keeps_its_line_and_stands_in_the_errors_file(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    sink = open_sink(spec, "r1", state=tmp_path, first_line=1)
    sink.restore(None)
    sink.append(results(0, 4))
    sink.commit()
    sink.publish()
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert lines[2:] == ['{"id":"r2","output":{"square":4}}', '{"id":"r3","output":null}']
    assert (tmp_path / "out.jsonl.errors.jsonl").read_text() == (
        '{"row":3,"line":4,"code":"handler_error","message":"row 3 is bad","carried":{"id":"r3"}}\n'
    )


def test_publishing_goes_on_where_a_crash_left_it(tmp_path: Path) -> None:
    sink = open_sink(spec_of(tmp_path), "r1", state=tmp_path)
    sink.restore(None)
    sink.append(results(0, 10))
    mark = sink.commit()
    report = sink.publish()
    (tmp_path / "out.jsonl.errors.jsonl").rename(tmp_path / "out.jsonl.partial" / "errors.jsonl")
    again = open_sink(spec_of(tmp_path), "r1", state=tmp_path)
    again.restore(mark)
    assert again.publish() == report
    assert (tmp_path / "out.jsonl.errors.jsonl").exists()
    again.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.errors.jsonl"]


def test_an_output_that_exists_or_belongs_to_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(Conflict, match="exists"):
        open_sink(spec_of(tmp_path), "r1", state=tmp_path)
    open_sink(spec_of(tmp_path, overwrite=True), "r1", state=tmp_path).close()
    with pytest.raises(Conflict, match="run r1"):
        open_sink(spec_of(tmp_path, overwrite=True), "r2", state=tmp_path)


def test_an_errors_file_of_an_earlier_run_does_not_outlive_a_run_without_failures(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.errors.jsonl").write_text("old")
    sink = open_sink(spec_of(tmp_path, overwrite=True), "r1", state=tmp_path)
    sink.restore(None)
    sink.append(ResultBatch(0, [1], {}))
    assert sink.publish()["errors"] is None
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()


HEADER = Header(run_id="r1", spec_digest="d", input={"files": [{"name": "a", "bytes": 5}]}, model="m", version="1")


def entry(rows: int) -> JournalEntry:
    return JournalEntry(rows_done=rows, failed=0, after={"row": rows}, mark={"rows": rows}, at=1.0)


def test_a_journal_cut_anywhere_gives_the_last_whole_entry(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.create(HEADER)
    for rows in (10, 20):
        journal.append(entry(rows))
    journal.close()
    whole = journal.path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 0x0A]
    for length in range(len(whole) + 1):
        journal.path.write_bytes(whole[:length])
        again = Journal(journal.path)
        assert again.open() is (length >= ends[0])
        last = again.last()
        assert (last.rows_done if last else 0) == (20 if length >= ends[2] else 10 if length >= ends[1] else 0)
        again.close()


def test_a_journal_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.create(HEADER)
    journal.append(entry(10))
    journal.close()
    with journal.path.open("ab") as file:
        file.write(b"0000")
    again = Journal(journal.path)
    assert again.open()
    again.append(entry(20))
    again.close()
    last = Journal(journal.path)
    assert last.open()
    assert last.last() == entry(20)
    last.close()


@pytest.mark.parametrize("kind", ["file", "folder", "batch"])
def test_an_input_whose_content_changed_is_noticed_although_size_and_time_are_as_before(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "in" / "a.txt"
    path.parent.mkdir()
    size = 1 << 18
    path.write_bytes(b"x" * size)
    source: RowSource
    match kind:
        case "folder":
            source = FolderSource([str(path)])
        case "batch":
            source = OpenAISource(RunSpec(model="m", input=str(path), output="none"))
        case _:
            source = open_source(RunSpec(model="m", input=str(path), output="none.jsonl"))
    before, times = source.identity(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    assert source.identity() == before
    with path.open("r+b") as file:
        # In the middle: the first and the last block stay as they are.
        file.seek(size // 2)
        file.write(b"y")

    def is_noticed() -> bool:
        # A kernel's clock of files may tick every few milliseconds only.
        os.utime(path, ns=times)
        return source.identity() != before

    eventually(is_noticed, timeout_s=5.0)
    source.close()


def test_a_journal_has_one_writer_at_a_time(tmp_path: Path) -> None:
    """A driver that was only frozen went on writing beside the one that had taken its run."""
    first, second = Journal(tmp_path / "out" / "journal.jsonl"), Journal(tmp_path / "out" / "journal.jsonl")
    assert first.acquire()
    first.create(HEADER)
    assert not second.acquire()
    with pytest.raises(Conflict, match="another process writes"):
        second.create(HEADER)
    first.append(entry(10))
    first.close()
    assert second.acquire()
    assert second.open()
    assert second.last() == entry(10)
    second.close()


def test_a_journal_that_was_removed_while_another_waited_for_it_is_begun_anew(tmp_path: Path) -> None:
    first, second = Journal(tmp_path / "out" / "journal.jsonl"), Journal(tmp_path / "out" / "journal.jsonl")
    assert first.acquire()
    first.create(HEADER)
    shutil.rmtree(first.path.parent)
    assert second.acquire()
    assert not second.open()
    first.close()
    second.close()


def test_a_changed_input_or_model_is_reported_in_words(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.create(HEADER)
    journal.close()
    now = Header(run_id="r1", spec_digest="d", input={"files": [{"name": "a", "bytes": 6}]}, model="m", version="2")
    assert journal.changed(HEADER) == []
    assert journal.changed(now) == [
        "it started with m 1, the model is now m 2",
        "the input file a changed from 5 to 6 bytes since the run started",
    ]
    with pytest.raises(Conflict, match="the model is now m 2"):
        refuse_changed(journal.changed(now))
