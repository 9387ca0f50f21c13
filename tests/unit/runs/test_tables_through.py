"""CSV, Parquet, folders and object stores, read and written in pieces."""

from __future__ import annotations

import csv
import io
import random
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.run import RunSpec
from penstock.runs.rows import ResultBatch, RowError
from penstock.runs.sinks.opening import open_sink
from penstock.runs.sources.opening import open_source

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)


def spec_of(source: Path | str, **more: Any) -> RunSpec:
    return RunSpec(**{"model": "m", "input": str(source), "output": "none.jsonl"} | more)


def read_all(
    spec: RunSpec, schema: dict[str, Any] | None = None, *, rows: int = 3
) -> tuple[list[Any], dict[str, list[Any]], Any]:
    inputs: list[Any] = []
    carried: dict[str, list[Any]] = {}
    bad: dict[int, RowError] = {}
    after = None
    while True:
        with closing(open_source(spec, input_schema=schema)) as source:
            batch = source.read(after, rows=rows, size_bytes=1 << 20)
        if batch is None:
            return inputs, carried, bad
        assert batch.first == len(inputs)
        bad |= {batch.first + place: error for place, error in batch.bad.items()}
        inputs += batch.inputs
        for name, values in batch.carried.items():
            carried.setdefault(name, []).extend(values)
        after = msgspec.json.decode(msgspec.json.encode(batch.after))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.lists(st.tuples(CELLS, CELLS), max_size=12), rows=st.integers(1, 5), end=st.sampled_from(["\n", "\r\n"]))
def test_csv_comes_out_as_it_was_written_at_every_border(
    tmp_path: Path, table: list[tuple[str, str]], rows: int, end: str
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *table])
    (tmp_path / "in.csv").write_bytes(text.getvalue().encode())
    spec = spec_of(tmp_path / "in.csv", columns={"": "a"}, carry=("b",))
    inputs, carried, bad = read_all(spec, {"type": "string"}, rows=rows)
    assert (inputs, carried.get("b", []), bad) == ([a for a, _ in table], [b for _, b in table], {})


def test_bad_csv_records_are_rows_with_a_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b'x,t\n1,one\n2\n3,"a "b" c"\n4,\xff\n"five",e\n6,"open\n7,g\n')
    schema = {"type": "object", "properties": {"x": {"type": "number"}, "t": {"type": "string"}}}
    inputs, _, bad = read_all(spec_of(tmp_path / "in.csv"), schema)
    assert [each and each["x"] for each in inputs] == [1, None, None, None, None, None, 7]
    assert inputs[0] == {"x": 1, "t": "one"}
    assert {row: error.code for row, error in bad.items()} == dict.fromkeys((1, 2, 3, 4, 5), "invalid_input")
    assert bad[1].message == "line 3: the record has 1 columns, the header 2"
    assert bad[4].message.startswith("line 6: column 'x' holds 'five'")


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_a_bad_record_names_its_line_and_keeps_the_cells_that_it_has(tmp_path: Path, rows: int) -> None:
    """Regression: the error of a row of a table had no line, and the row of a short record lost its id."""
    (tmp_path / "in.csv").write_bytes(b'id,x\na,"1\n"\nb\nc,no,5\nd,\xff\ne,x\n')
    schema = {"type": "object", "properties": {"x": {"type": "number"}}}
    _, carried, bad = read_all(spec_of(tmp_path / "in.csv", columns={"x": "x"}, carry=("id",)), schema, rows=rows)
    assert carried["id"] == ["a", "b", "c", "d", "e"]
    assert {row: error.message.partition(":")[0] for row, error in bad.items()} == {
        1: "line 4",
        2: "line 5",
        3: "line 6",
        4: "line 7",
    }


@pytest.mark.parametrize("name", ["in.csv", "in.parquet"])
def test_a_column_that_is_not_there_is_told_up_front_with_those_that_are(tmp_path: Path, name: str) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,2\n")
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "in.parquet")
    with pytest.raises(InvalidInput, match="no column 'c'") as caught:
        open_source(spec_of(tmp_path / name, columns={"x": "c"}))
    assert caught.value.hint == "its columns are 'a', 'b'"


def test_what_is_no_parquet_is_told_up_front(tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_text("nothing of the kind")
    with pytest.raises(InvalidInput, match="is not a Parquet file"):
        open_source(spec_of(tmp_path / "in.parquet"))


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_parquet_goes_on_at_every_border_of_rows_and_groups(tmp_path: Path, rows: int) -> None:
    table = pa.table({"n": list(range(50)), "text": [f"t{n}" for n in range(50)], "unread": [0] * 50})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=9)
    spec = spec_of(tmp_path / "in.parquet", columns={"x": "n"}, carry=("text",))
    inputs, carried, _ = read_all(spec, rows=rows)
    assert inputs == [{"x": n} for n in range(50)]
    assert carried["text"] == [f"t{n}" for n in range(50)]


def test_bytes_of_a_parquet_column_are_bodies_and_other_types_are_plain(tmp_path: Path) -> None:
    when = pa.array([0], pa.timestamp("s"))
    pq.write_table(pa.table({"image": [b"\x00\x01"], "when": when, "list": [[1.5]]}), tmp_path / "in.parquet")
    with closing(open_source(spec_of(tmp_path / "in.parquet", columns={"": "image"}))) as source:
        batch = source.read(None, rows=5, size_bytes=100)
        assert batch is not None
        assert (source.media, batch.inputs, source.count()) == ("application/octet-stream", [b"\x00\x01"], 1)
    assert read_all(spec_of(tmp_path / "in.parquet"))[0] == [{"image": "AAE=", "when": "1970-01-01T00:00:00", "list": [1.5]}]


_READ_TO_THE_END = """
import resource, sys
from penstock.run import RunSpec
from penstock.runs.files import import_arrow
from penstock.runs.sources.opening import open_source
import_arrow()
most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before, rows, after = most(), 0, None
source = open_source(RunSpec(model="m", input=sys.argv[1], output="none.jsonl"))
while (batch := source.read(after, rows=8_000, size_bytes=8 << 20)) is not None:
    rows, after = rows + len(batch), batch.after
print(rows, most() - before)
"""


def _huge(kind: str, rows: int) -> Any:
    places = pa.array([None, 0] + [1] * (rows - 2), pa.int32())
    texts = pa.DictionaryArray.from_arrays(places, pa.array(["short", "x" * 131_072]))
    match kind:
        case "lists of texts":
            return pa.ListArray.from_arrays(list(range(rows + 1)), texts)
        case "structs":
            return pa.StructArray.from_arrays([texts], ["t"])
        case "numbers":
            numbers = pa.nulls(5_000 * rows, pa.int64()).fill_null(0)
            return pa.ListArray.from_arrays(list(range(0, 5_000 * rows + 1, 5_000)), numbers)
    return texts


@pytest.mark.parametrize("kind", ["texts", "lists of texts", "structs", "a dictionary", "numbers"])
def test_a_small_parquet_file_of_huge_rows_is_handed_out_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    """A file of 9 KB once cost 526 MB to hand out one row, and its run killed one runner after the other."""
    column = _huge(kind, 4_000)
    pq.write_table(pa.table({"x": column}), tmp_path / "in.parquet", compression="zstd", store_schema=kind == "a dictionary")
    command = [sys.executable, "-c", _READ_TO_THE_END, str(tmp_path / "in.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows, grown_mib = map(int, done.stdout.split())
    assert (rows, grown_mib < 200) == (4_000, True), f"{grown_mib} MiB"


def test_a_text_of_a_parquet_file_that_is_not_utf8_is_named_with_its_row(tmp_path: Path) -> None:
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"]).buffers())
    pq.write_table(pa.table({"x": pa.concat_arrays([pa.array(["t"] * 5), texts])}), tmp_path / "in.parquet", row_group_size=5)
    with pytest.raises(InvalidInput, match="column 'x' of row 7 cannot be read"):
        read_all(spec_of(tmp_path / "in.parquet"), rows=100)


def test_a_folder_gives_its_files_by_name_with_their_paths(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for name in ("b.png", "a.png", "sub/c.png", ".hidden"):
        (tmp_path / "in" / name).write_bytes(name.encode())
    spec = spec_of(tmp_path / "in")
    inputs, carried, bad = read_all(spec, rows=2)
    assert inputs == [b"a.png", b"b.png", b"sub/c.png"]
    assert carried["path"] == [str(tmp_path / "in" / name) for name in ("a.png", "b.png", "sub/c.png")]
    assert bad == {}
    assert open_source(spec).media == "image/png"


def test_a_gzipped_file_and_parts_of_a_glob_are_read_as_one_input(tmp_path: Path) -> None:
    import gzip

    for part in range(2):
        with gzip.open(tmp_path / f"p{part}.jsonl.gz", "wb") as file:
            file.write(b"".join(b"%d\n" % n for n in range(part * 5, part * 5 + 5)))
    assert read_all(spec_of(tmp_path / "*.jsonl.gz"), rows=2)[0] == list(range(10))


def test_an_object_store_is_read_and_written(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/in.jsonl", b"1\n2\n")
    spec = RunSpec(model="m", input="memory://bucket/in.jsonl", output="memory://bucket/out.jsonl")
    assert read_all(spec, rows=1)[0] == [1, 2]
    sink = open_sink(spec, "r1", state=tmp_path)
    sink.restore(None)
    sink.append(ResultBatch(0, [1, None], {}, {1: RowError("invalid_input", "no")}))
    sink.publish()
    sink.discard()
    assert memory.cat("/bucket/out.jsonl") == b'{"output":1}\n{"output":null}\n'
    assert b'"row":1' in memory.cat("/bucket/out.jsonl.errors.jsonl")
    assert list(tmp_path.iterdir()) == []
    memory.rm("/bucket", recursive=True)


OUTPUTS = [
    [1, 2.5, None, 4],
    [{"a": 1}, {"b": [1.5]}, {"a": 2.5}, None],
    [[], [1], [2.5]],
    [1, 2.5, "three", {"b": 1, "a": None}],
    [{}, None],
    [b"\x00", b"\x01"],
    [2**63, 1],
]


@pytest.mark.parametrize("outputs", OUTPUTS, ids=str)
def test_a_parquet_output_does_not_depend_on_where_commits_fell(
    tmp_path: Path, outputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runs.sinks.parquet.GROUP_ROWS", 10)
    chances = random.Random(1)
    written = []
    for name in ("one", "two"):
        spec = spec_of("none", output=str(tmp_path / f"{name}.parquet"))
        sink = open_sink(spec, "r1", state=tmp_path)
        mark = None
        sink.restore(None)
        for row in range(25):
            sink.append(ResultBatch(row, [outputs[row % len(outputs)]], {"id": [row]}))
            if name == "two" and chances.random() < 0.4:
                mark = sink.commit()
        if mark is not None:
            sink.close()
            sink = open_sink(spec, "r1", state=tmp_path)
            sink.restore(mark)
            for row in range(mark["rows"], 25):
                sink.append(ResultBatch(row, [outputs[row % len(outputs)]], {"id": [row]}))
        assert sink.publish()["output"]["rows"] == 25
        sink.discard()
        written.append((tmp_path / f"{name}.parquet").read_bytes())
    assert written[0] == written[1]
    assert pq.read_table(tmp_path / "one.parquet").column("id").to_pylist() == list(range(25))
    assert pq.read_table(tmp_path / "one.parquet").column_names == ["id", "output"]
    assert pq.ParquetFile(tmp_path / "one.parquet").num_row_groups == 3
