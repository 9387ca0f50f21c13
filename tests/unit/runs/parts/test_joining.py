"""Joined parts are, byte for byte, what one driver would have written; a crash while they are joined changes nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import Conflict
from penstock.run import Run, RunPart, RunSpec, RunState
from penstock.runs.parts.joining import join_parts, joined_counts, read_reports, shifted
from penstock.runs.parts.part_files import PartNotHere, open_part_sink, part_folder, run_folder
from penstock.runs.rows import ResultBatch, RowError
from penstock.runs.sinks.file_sink import FileSink
from penstock.runs.sinks.opening import open_sink

OUTPUTS = [1, 2.5, "text", {"a": 1, "b": [1, 2]}, {"c": None}, [0.5, 1.0], None]
FORMATS = ["jsonl", "csv", "tsv", "parquet"]


def results(rng: random.Random, rows: int) -> list[tuple[Any, RowError | None]]:
    kinds = OUTPUTS if rng.random() < 0.5 else OUTPUTS[:1]
    return [(rng.choice(kinds), None) if rng.random() < 0.8 else (None, RowError("bad", "why")) for _ in range(rows)]


def write(sink: Any, rows: list[tuple[Any, RowError | None]], numbers: list[int], rng: random.Random) -> None:
    """In batches of any size, with commits at any place."""
    at = 0
    while at < len(rows):
        batch = rows[at : at + rng.choice([1, 3, 50])]
        failed = {place: error for place, (_, error) in enumerate(batch) if error}
        carried = {"id": numbers[at : at + len(batch)]}
        sink.append(ResultBatch(at, [output for output, _ in batch], carried, failed))
        at += len(batch)
        if rng.random() < 0.3:
            sink.commit()


def run_of(folder: Path, kind: str, *, part: RunPart | None = None) -> Run:
    spec = RunSpec(model="m", input="i", output=str(folder / f"out.{kind}"), parts=3)
    run = Run(id="r", spec=spec, state=RunState.RUNNING, created_at=0.0, parts=3)
    return run if part is None else msgspec.structs.replace(run, id=f"r.{part.number}", part=part, part_of="r", parts=0)


def split_and_written(folder: Path, kind: str, seed: int) -> tuple[Run, FileSink, list[tuple[Any, RowError | None]]]:
    """A run whose parts are completed; its sink; all rows."""
    rng = random.Random(seed)
    whole = run_of(folder, kind)
    sink = open_sink(whole.spec, whole.id, state=folder, first_line=1)
    rows: list[tuple[Any, RowError | None]] = []
    for number in range(3):
        own = results(rng, rng.choice([0, 1, 30]))
        part = RunPart(number=number, first=0, stop=1)
        part_sink = open_part_sink(run_of(folder, kind, part=part), part, state=folder, first_line=1)
        part_sink.restore(None)
        write(part_sink, own, list(range(len(rows), len(rows) + len(own))), rng)
        part_sink.publish()
        rows += own
    return whole, sink, rows


def joined(whole: Run, sink: FileSink, folder: Path) -> None:
    partial = run_folder(whole, folder)
    assert join_parts(sink, partial, read_reports(partial, 3), go_on=lambda: True)


def published(folder: Path, kind: str) -> list[bytes | None]:
    paths = [folder / f"out.{kind}", folder / f"out.{kind}.errors.jsonl"]
    return [path.read_bytes() if path.exists() else None for path in paths]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("seed", range(6))
def test_joined_parts_are_what_one_driver_would_have_written(tmp_path: Path, kind: str, seed: int) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    whole, sink, rows = split_and_written(many, kind, seed)
    joined(whole, sink, many)
    report = sink.publish()
    alone = open_sink(run_of(one, kind).spec, "r", state=one, first_line=1)
    alone.restore(None)
    write(alone, rows, list(range(len(rows))), random.Random(seed))
    expected = alone.publish()
    assert published(many, kind) == published(one, kind)
    assert report["output"]["sha256"] == expected["output"]["sha256"]
    assert report["output"]["rows"] == len(rows)
    failed = sum(error is not None for _, error in rows)
    counts = joined_counts(read_reports(run_folder(whole, many), 3))
    assert (counts.total, counts.failed) == (len(rows), failed)


@pytest.mark.parametrize("crash", ["while joining", "before publishing", "while publishing"])
def test_joining_is_repeated_after_a_crash_at_any_point(tmp_path: Path, crash: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, sink, rows = split_and_written(tmp_path, "jsonl", 5)
    partial = run_folder(whole, tmp_path)
    if crash == "while joining":
        turns = iter([True, True, False])
        assert not join_parts(sink, partial, read_reports(partial, 3), go_on=lambda: next(turns))
    else:
        joined(whole, sink, tmp_path)
    if crash == "while publishing":
        with monkeypatch.context() as broken:
            broken.setattr(FileSink, "_put", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                sink.publish()
    sink.close()
    again = open_sink(whole.spec, whole.id, state=tmp_path, first_line=1)
    joined(whole, again, tmp_path)
    report = again.publish()
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == list(range(len(rows)))
    assert report["output"]["rows"] == len(rows)


def test_rows_that_another_process_has_changed_are_not_joined(tmp_path: Path) -> None:
    whole, sink, _ = split_and_written(tmp_path, "jsonl", 5)
    partial = run_folder(whole, tmp_path)
    changed = next(path for path in sorted(partial.glob("part-*/rows.jsonl")) if path.stat().st_size)
    changed.write_bytes(changed.read_bytes()[:-2] + b"5\n")
    with pytest.raises(Conflict, match="is not what the part's driver wrote"):
        joined(whole, sink, tmp_path)
    sink.close()


def test_a_host_without_the_output_of_a_run_gives_its_parts_back(tmp_path: Path) -> None:
    part = RunPart(number=0, first=0, stop=1)
    run = run_of(tmp_path / "elsewhere", "jsonl", part=part)
    with pytest.raises(PartNotHere, match="where the run was split"):
        open_part_sink(run, part, state=tmp_path, first_line=None)
    assert not (tmp_path / "elsewhere").exists()


def test_a_part_without_a_report_is_not_joined(tmp_path: Path) -> None:
    whole, _, _ = split_and_written(tmp_path, "jsonl", 2)
    partial = run_folder(whole, tmp_path)
    (part_folder(partial, 1) / "part.json").unlink()
    with pytest.raises(PartNotHere, match="part-0001 has no report"):
        read_reports(partial, 3)


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        (b'{"row":0,"code":"x"}\n', b'{"row":10,"code":"x"}\n'),
        (b'{"row":7,"line":8,"code":"x"}\n', b'{"row":17,"line":18,"code":"x"}\n'),
        (b'{"row":7,"code":"{\\"row\\":1"}\n', b'{"row":17,"code":"{\\"row\\":1"}\n'),
    ],
)
def test_rows_and_lines_of_errors_are_counted_over_the_whole_input(line: bytes, moved: bytes) -> None:
    assert shifted(line, 10) == moved


def test_what_is_no_line_of_an_errors_file_is_refused() -> None:
    with pytest.raises(Conflict):
        shifted(b"garbage\n", 1)
