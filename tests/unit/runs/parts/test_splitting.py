"""The parts of an input hold every row exactly once and in order, whatever its files are."""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from penstock.errors import Conflict
from penstock.run import RunPart, RunSpec
from penstock.runs.parts.part_files import PartNotHere, need_same_input
from penstock.runs.parts.splitting import identity_of, line_ends, listing_of, split_input
from penstock.runs.parts.stretches import InputStretch, cuts_in_files, deal, total_rows
from penstock.runs.sources.opening import FileSource, open_source

SEEDS = range(40)


def read_all(source: FileSource, *, rows: int = 3) -> tuple[list[Any], list[str]]:
    """All inputs, and the messages of bad rows."""
    inputs: list[Any] = []
    messages: list[str] = []
    after: dict[str, Any] | None = None
    while batch := source.read(after, rows=rows, size_bytes=200):
        assert batch.first == len(inputs)
        messages += [batch.bad[place].message for place in sorted(batch.bad)]
        inputs += batch.inputs
        after = batch.after
    source.close()
    return inputs, messages


def assert_split(spec: RunSpec, parts: int) -> list[RunPart]:
    """The parts, read one after the other, are the whole input."""
    whole = read_all(open_source(spec))
    found = split_input(open_source(spec), parts)
    assert 1 <= len(found) <= parts
    assert [part.number for part in found] == list(range(len(found)))
    read = [read_all(open_source(spec).of_part(part)) for part in found]
    assert [row for inputs, _ in read for row in inputs] == whole[0]
    assert [message for _, messages in read for message in messages] == whole[1]
    for part, (inputs, _) in zip(found, read, strict=True):
        assert part.rows in {None, len(inputs)}
    return found


def line_of(rng: random.Random) -> bytes:
    return rng.choice([b"7", b"", b"{bad", b'"' + b"x" * rng.choice([0, 3, 400]) + b'"', "\u00e9".encode().join([b'"', b'"'])])


@pytest.mark.parametrize("seed", SEEDS)
def test_lines(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(rng.choice([1, 1, 2, 5])):
        text = b"\n".join(line_of(rng) for _ in range(rng.choice([0, 1, 2, 40]))) + rng.choice([b"", b"\n"])
        packed = rng.random() < 0.15
        path = tmp_path / f"{number}.jsonl{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text) if packed else rng.choice([b"", b"\xef\xbb\xbf"]) + text)
    spec = RunSpec(model="m", input=str(tmp_path), output="o.jsonl", input_format=rng.choice(["jsonl", "text"]))
    assert_split(spec, rng.choice([1, 2, 3, 7, 50]))


@pytest.mark.parametrize("seed", SEEDS)
def test_tables(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    cells = ["a", "", "1.5", "long " * 30] + (["a\nb", 'say "x"', "1,2"] if seed % 2 else [])
    for number in range(rng.choice([1, 1, 3])):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator=rng.choice(["\n", "\r\n"]))
        writer.writerow(["a", "b"])
        writer.writerows([[rng.choice(cells) for _ in range(rng.choice([2, 2, 2, 3]))] for _ in range(rng.choice([0, 1, 60]))])
        (tmp_path / f"{number}.csv").write_text(text.getvalue(), newline="")
    spec = RunSpec(model="m", input=str(tmp_path), output="o.jsonl", columns={"x": "a", "y": "b"})
    assert_split(spec, rng.choice([2, 3, 9]))


@pytest.mark.parametrize("seed", range(12))
def test_row_groups(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    total = 0
    for number in range(rng.choice([1, 3])):
        rows = rng.choice([0, 1, 50])
        table = pa.table({"x": pa.array(range(total, total + rows), pa.int64())})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=rng.choice([1, 7, 100]))
        total += rows
    parts = assert_split(RunSpec(model="m", input=str(tmp_path), output="o.jsonl"), rng.choice([2, 5]))
    assert total_rows(parts) == total


@pytest.mark.parametrize("parts", [1, 2, 3, 10])
def test_files_that_are_rows(tmp_path: Path, parts: int) -> None:
    for number in range(7):
        (tmp_path / f"{number}.txt").write_text("x" * number * 1000)
    found = assert_split(RunSpec(model="m", input=str(tmp_path), output="o.jsonl"), parts)
    assert len(found) == min(parts, 7)
    assert total_rows(found) == 7


def test_a_large_file_is_cut_into_parts_of_about_the_same_size(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(b"%06d\n" % number for number in range(100_000, 110_000)))
    found = assert_split(RunSpec(model="m", input=str(path), output="o.jsonl"), 4)
    rows = [len(read_all(open_source(RunSpec(model="m", input=str(path), output="o")).of_part(part))[0]) for part in found]
    assert rows == [2500] * 4
    assert [part.begin and part.begin["line"] for part in found] == [None, 2500, 5000, 7500]


def test_lines_are_counted_across_blocks() -> None:
    blocks = [b"a\nbb", b"b\n\nc", b"", b"cc\nd"]
    assert line_ends(blocks, [1, 3, 4, 11], before_quote=False) == [(2, 1), (6, 2), (11, 4)]
    assert line_ends(blocks, [12], before_quote=False) == []


def test_a_table_is_cut_only_before_its_first_quotation_mark() -> None:
    text = b'a\n1\n2\n"x\ny"\n3\n'
    assert line_ends([text], [4, 12], before_quote=True) == [(4, 2)]
    assert line_ends([text], [4, 12], before_quote=False) == [(4, 2), (12, 5)]


def test_small_files_are_dealt_out_whole() -> None:
    assert cuts_in_files([100] * 8, 2) == {}
    assert cuts_in_files([1000, 10, 10], 2) == {0: [510]}
    groups = deal([InputStretch(number, 0) for number in range(6)], 3)
    assert [[stretch.file for stretch in group] for group in groups] == [[0, 1], [2, 3], [4, 5]]


def test_what_a_part_is_shows_when_its_files_change(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("1\n2\n")
    spec = RunSpec(model="m", input=str(tmp_path), output="o.jsonl")
    first, second = split_input(open_source(spec), 2)
    assert first.listing == second.listing == listing_of(open_source(spec))
    (tmp_path / "b.jsonl").write_text("1\n2\n3\n")
    assert identity_of(open_source(spec).of_part(first)) == first.identity
    assert identity_of(open_source(spec).of_part(second)) != second.identity
    (tmp_path / "c.jsonl").write_text("1\n")
    assert listing_of(open_source(spec)) != first.listing


def test_an_input_that_changed_ends_the_run_where_it_was_split_and_is_another_one_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("1\n2\n")
    spec = RunSpec(model="m", input=str(path), output="o.jsonl")
    [part] = split_input(open_source(spec), 1)
    need_same_input(open_source(spec), part, accept_changes=False)
    path.write_text("1\n2\n3\n")
    with pytest.raises(Conflict, match="has changed since the run was split"):
        need_same_input(open_source(spec), part, accept_changes=False)
    with pytest.raises(PartNotHere, match="is not the one that was split on elsewhere"):
        need_same_input(open_source(spec), replace(part, host="elsewhere"), accept_changes=False)
    need_same_input(open_source(spec), part, accept_changes=True)
    with pytest.raises(Conflict):
        need_same_input(open_source(spec), replace(part, listing="other"), accept_changes=True)
