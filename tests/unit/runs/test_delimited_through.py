"""CSV and TSV as outputs, all columns carried, and the share of an input that is done."""

from __future__ import annotations

import csv
import gzip
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Conflict, InvalidInput
from penstock.run import Run, RunCounts, RunSpec, RunState, retry_spec
from penstock.runs.progress import ProgressMeter
from penstock.runs.rows import ResultBatch, RowError
from penstock.runs.sinks.opening import open_sink
from penstock.runs.sources.opening import open_source


def spec_of(source: Path | str, **more: Any) -> RunSpec:
    return RunSpec(**{"model": "m", "input": str(source), "output": "none.jsonl"} | more)


def written(tmp_path: Path, name: str, *batches: ResultBatch) -> list[list[str]]:
    sink = open_sink(spec_of("in.csv", output=str(tmp_path / name)), "run1", state=tmp_path)
    sink.restore(None)
    for batch in batches:
        sink.append(batch)
    sink.commit()
    report = sink.publish()
    sink.discard()
    assert report["output"]["rows"] == sum(len(batch.outputs) for batch in batches)
    with (tmp_path / name).open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file, delimiter="\t" if name.endswith("tsv") else ","))


@pytest.mark.parametrize("name", ["out.csv", "out.tsv"])
def test_outputs_that_are_objects_become_columns(tmp_path: Path, name: str) -> None:
    found = written(
        tmp_path,
        name,
        ResultBatch(0, [None, {"y": 1.5, "id": 'a\tb,c\n"d"'}], {"id": [7, 8]}, {0: RowError("x", "y")}),
        ResultBatch(2, [{"late": [1, True], "y": None}], {"id": ["é"]}),
    )
    assert found == [
        ["id", "y", "output.id", "late"],
        ["7", "", "", ""],
        ["8", "1.5", 'a\tb,c\n"d"', ""],
        ["é", "", "", "[1,true]"],
    ]


def test_other_outputs_are_one_column(tmp_path: Path) -> None:
    found = written(tmp_path, "out.csv", ResultBatch(0, [1, "text", {"y": 1}, None, True], {}))
    assert found == [["output"], ["1"], ["text"], ['{"y":1}'], [""], ["true"]]


def test_an_empty_run_writes_a_header(tmp_path: Path) -> None:
    assert written(tmp_path, "out.csv") == [["output"]]


def test_the_failed_rows_of_a_table_cannot_be_run_again() -> None:
    spec = spec_of("in.csv", output="out.csv")
    run = Run(id="r", spec=spec, state=RunState.COMPLETED, created_at=0.0, counts=RunCounts(done=1, failed=1))
    with pytest.raises(Conflict, match="cannot be read back"):
        retry_spec(run)


@pytest.mark.parametrize(
    ("name", "content"),
    [("in.csv", "a,b\n1,2\n"), ("in.tsv", "a\tb\n1\t2\n"), ("in.jsonl", '{"a": "1", "b": "2"}\n')],
)
def test_a_star_carries_every_column(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with closing(open_source(spec_of(tmp_path / name, carry=("*",)), input_schema={"type": "object"})) as source:
        batch = source.read(None, rows=9, size_bytes=1 << 20)
    assert batch is not None
    assert batch.carried == {"a": ["1"], "b": ["2"]}


def test_a_star_carries_the_path_of_files_and_the_columns_of_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": [1], "t": ["x"]}), tmp_path / "in.parquet")
    with closing(open_source(spec_of(tmp_path / "in.parquet", carry=("*",)))) as source:
        batch = source.read(None, rows=9, size_bytes=1 << 20)
    assert batch is not None
    assert batch.carried == {"n": [1], "t": ["x"]}
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"x")
    with closing(open_source(spec_of(tmp_path / "images", carry=("*",)))) as source:
        assert source.read(None, rows=9, size_bytes=1).carried == {"path": [str(tmp_path / "images" / "a.png")]}  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "content"), [("in.txt", "a\n"), ("in.jsonl", "[1]\n"), ("in.csv", "output\n1\n")])
def test_a_star_without_columns_to_carry_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInput):
        open_source(spec_of(tmp_path / name, carry=("*",)))


def shares(names: list[Path]) -> list[float | None]:
    """The share behind each row."""
    found: list[float | None] = []
    with closing(open_source(spec_of(names[0].parent if len(names) > 1 else names[0], input_format="csv"))) as source:
        after = None
        while (batch := source.read(after, rows=1, size_bytes=1 << 20)) is not None:
            after = batch.after
            found.append(source.share_before(after))
    return found


def test_the_share_of_a_text_input_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 9)
    assert shares([tmp_path / "a.csv"]) == [pytest.approx((row + 2) / 10) for row in range(9)]
    (tmp_path / "b.csv").write_text("x\n" + "1\n" * 9)
    assert shares([tmp_path / "a.csv", tmp_path / "b.csv"])[-1] == 1.0


def test_the_share_of_a_packed_input_is_unknown_until_a_file_of_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n1\n2\n"))
    assert shares([tmp_path / "a.csv.gz"]) == [None, None]
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"x\n1\n2\n"))
    assert shares([tmp_path / "a.csv.gz", tmp_path / "b.csv.gz"]) == [0.0, 0.0, 0.5, 0.5]


def test_the_share_tells_when_a_run_will_end() -> None:
    meter = ProgressMeter(RunCounts(), now=0.0)
    meter.add_rows(done=100, failed=0, now=10.0)
    assert meter.measure(10.0, slots=1).eta_s is None
    meter.share = 0.25
    progress = meter.measure(10.0, slots=1)
    assert (progress.share, progress.eta_s) == (0.25, 30.0)
    known = ProgressMeter(RunCounts(total=400, done=100), now=0.0).measure(1.0, slots=1)
    assert known.share == 0.25
