"""The input files of the measured runs, generated on the spot and equal for equal counts."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from benchmarks.models.length_buckets import mixed_texts
from benchmarks.stack import EXAMPLES

_ROW_GROUP = 65_536


def write_texts(path: Path, count: int) -> None:
    """JSON Lines with one text of mixed length per line."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in mixed_texts(count)))


def write_images(path: Path, count: int) -> None:
    """Parquet with the real digits of the example as PNG bytes, repeated."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [file.read_bytes() for file in sorted((EXAMPLES / "digits" / "images").glob("*.png"))]
    pq.write_table(pa.table({"image": [images[row % len(images)] for row in range(count)]}), path)


def write_numbers(path: Path, count: int) -> None:
    """Parquet with one column of numbers, written group by group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("x", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, count, _ROW_GROUP):
            rows = range(first, min(first + _ROW_GROUP, count))
            writer.write_table(pa.table({"x": pa.array(rows, pa.int64())}, schema=schema))


def read_inputs(path: Path) -> list[object]:
    """All rows of one of these files, for a loop, as the model gets them."""
    if path.suffix == ".jsonl":
        return [json.loads(line)["text"] for line in path.read_text().splitlines()]
    import pyarrow.parquet as pq

    [column] = pq.read_table(path).columns
    return list(column.to_pylist())


def as_body(value: object) -> tuple[str, bytes]:
    """The media type and the bytes of a row as a single request."""
    if isinstance(value, bytes):
        return "image/png", value
    return "application/json", json.dumps(value).encode()


def described(value: object) -> str:
    """The beginning of a value, for messages."""
    text = base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
    return text[:40]
