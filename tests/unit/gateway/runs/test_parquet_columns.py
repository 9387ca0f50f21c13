"""The columns of a Parquet file are read without a library, as the library reads them; a damaged file shows none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import InvalidInput
from penstock.gateway.runs.columns import check_columns
from penstock.gateway.runs.parquet_columns import _MOST_BYTES, parquet_columns

NESTED = {
    "id": [1, 2],
    "tags": [["a"], []],
    "who": [{"name": "x", "where": {"lat": 1.0, "lon": 2.0}}, None],
    "größe": [1.5, None],
    "when": pa.array([1, 2], pa.timestamp("ms", tz="UTC")),
    "price": pa.array([1, 2], pa.decimal128(9, 2)),
    "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
    "last": [True, False],
}


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.mark.parametrize("version", ["1.0", "2.4", "2.6"])
@pytest.mark.parametrize("codec", ["snappy", "none"])
def test_the_outermost_columns_are_those_that_the_library_finds(tmp_path: Path, version: str, codec: str) -> None:
    path = written(tmp_path / "in.parquet", NESTED, version=version, compression=codec)
    assert parquet_columns(path) == pq.ParquetFile(path).schema_arrow.names == list(NESTED)


def test_a_table_of_many_columns_or_none_is_read(tmp_path: Path) -> None:
    many = {f"column_{place}": [place] for place in range(2_000)}
    assert parquet_columns(written(tmp_path / "many.parquet", many)) == list(many)
    assert parquet_columns(written(tmp_path / "none.parquet", {})) == []


def test_a_schema_that_is_too_long_to_look_at_is_left_to_the_runner(tmp_path: Path) -> None:
    long = {f"{'x' * 4_000}{place}": [place] for place in range(_MOST_BYTES // 4_000 + 1)}
    assert parquet_columns(written(tmp_path / "long.parquet", long)) is None


def test_damaged_files_show_no_columns_or_some_and_raise_nothing(tmp_path: Path) -> None:
    whole = written(tmp_path / "in.parquet", NESTED).read_bytes()
    chance, path = random.Random(7), tmp_path / "damaged.parquet"
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            damaged[chance.randrange(len(damaged) - 700, len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.choice([len(damaged), chance.randrange(len(damaged))])])
        found = parquet_columns(path)
        assert found is None or all(isinstance(name, str) for name in found)
    for data in (
        b"",
        b"PAR1",
        b"PAR1" * 3,
        b"\xff\xff\xff\x7fPAR1",
        b"\x00\x00\x00\x00PAR1",
        b"\x1c" * 4_000 + b"\xa0\x0f\x00\x00PAR1",
    ):
        path.write_bytes(data)
        assert parquet_columns(path) is None


def test_a_wrong_column_of_a_parquet_file_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    path = written(tmp_path / "in.parquet", {"price": [1], "size": [2]})
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    check_columns(path, "parquet", {"x": "price"}, ("size",), schema=schema)
    with pytest.raises(InvalidInput, match="no column 'prize'; did you mean 'price'") as refused:
        check_columns(path, "parquet", {"x": "prize"}, (), schema=schema)
    assert refused.value.hint == "The columns of the input are 'price', 'size'."
    with pytest.raises(InvalidInput, match="no column gives 'x'"):
        check_columns(path, "parquet", {}, (), schema=schema)
