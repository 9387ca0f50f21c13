"""CSV and TSV: collected as JSON lines, written as a table once all rows are there, because only then are the columns known."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from penstock.runs import files
from penstock.runs.rows import ResultBatch
from penstock.runs.sinks.appendable import Appendable
from penstock.runs.sinks.rows_file import OUTPUT, JsonRows


@dataclass
class DelimitedRows:
    """A header, then one record per row: the carried columns, and the output.

    If every output is an object, each of its fields is a column; otherwise there is one column `output`. A cell is empty for
    null and for a field that is absent, text as it is, and JSON for everything else.
    """

    rows: JsonRows
    delimiter: str = ","

    @property
    def file(self) -> Appendable:
        return self.rows.file

    def append(self, results: ResultBatch) -> None:
        self.rows.append(results)

    def sync(self) -> int:
        return self.rows.sync()

    def cut(self, length: int) -> None:
        self.rows.cut(length)

    def finish(self) -> Path:
        source = self.rows.finish()
        carried, fields = _columns(source)
        # A field that is named like a carried column gets a name of its own.
        names = [f"{OUTPUT}.{field}" if field in carried else field for field in fields] if fields else [OUTPUT]
        target = source.with_suffix(".table")
        with files.atomic_write(target) as raw:
            # Records are encoded one by one: a text wrapper would close the file that `atomic_write` still has to sync.
            writer = csv.writer(_Utf8(raw), delimiter=self.delimiter, lineterminator="\n")
            writer.writerow([*carried, *names])
            for line in _lines(source):
                output = line[OUTPUT]
                cells = [(output or {}).get(field) for field in fields] if fields else [output]
                writer.writerow([_cell(value) for value in (*(line[name] for name in carried), *cells)])
        return target

    def close(self) -> None:
        self.rows.close()


class _Utf8:
    """The part of a text file that `csv.writer` needs."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return int(self._file.write(text.encode("utf-8", "surrogatepass")))


def _columns(source: Path) -> tuple[list[str], list[str]]:
    """The carried columns, and the fields of the outputs in the order in which they appear; no fields if one is no object."""
    carried: list[str] = []
    fields: dict[str, None] = {}
    are_objects = True
    for line in _lines(source):
        carried = carried or [name for name in line if name != OUTPUT]
        output = line[OUTPUT]
        if isinstance(output, dict):
            fields.update(dict.fromkeys(output))
        elif output is not None:
            are_objects = False
    return carried, list(fields) if are_objects else []


def _lines(source: Path) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    with source.open("rb") as file:
        for line in file:
            yield decoder.decode(line)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
