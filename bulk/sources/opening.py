"""The source that a run's spec asks for."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from penstock.bulk import files
from penstock.bulk.sources.lines import JsonLines, LineFile, TextLines
from penstock.bulk.sources.mapping import Mapping, checked, takes_scalar
from penstock.bulk.sources.parts import Part, PartsSource
from penstock.errors import InvalidInput
from penstock.run import RunSpec

_BY_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text"}
FORMATS = ("jsonl", "csv", "tsv", "parquet", "text", "files")


def open_source(spec: RunSpec, *, input_schema: dict[str, Any] | None = None) -> PartsSource:
    """The input, not yet read. `input_schema`: the model's, which tells whether a file's only column is the input itself and
    which type a cell of text stands for.

    Raises `NotFound` where no file is there, `InvalidInput` for a format nobody reads or columns that the input lacks.
    """
    names, _ = files.expand(spec.input)
    kind = spec.input_format or input_format(names[0])
    mapping = checked(spec.columns, spec.carry, takes_scalar(input_schema))
    return PartsSource(names, lambda name: _part(kind, name, mapping), first_line=1 if len(names) == 1 else None)


def input_format(name: str) -> str:
    path = PurePosixPath(name.lower().removesuffix(".gz"))
    return _BY_SUFFIX.get(path.suffix, "files")


def _part(kind: str, name: str, mapping: Mapping) -> Part:
    if kind == "jsonl":
        return JsonLines(LineFile(name), mapping)
    if kind == "text":
        return TextLines(LineFile(name))
    raise InvalidInput(f"nobody reads the format {kind!r}", hint=f"one of {', '.join(FORMATS)}")
