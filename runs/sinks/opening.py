"""The sink that a run's spec asks for."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import Conflict, InvalidInput
from penstock.run import DELIMITERS, RunSpec, format_of
from penstock.runs import files
from penstock.runs.files import import_arrow
from penstock.runs.sinks.appendable import Appendable
from penstock.runs.sinks.delimited import DelimitedRows
from penstock.runs.sinks.file_sink import FileSink
from penstock.runs.sinks.parquet import ParquetRows
from penstock.runs.sinks.partial import partial_of
from penstock.runs.sinks.rows_file import ERRORS_SUFFIX, ErrorLines, JsonRows, RowsFile

FORMATS = ("jsonl", "parquet", "csv", "tsv")


def open_sink(spec: RunSpec, run_id: str, *, state: Path, first_line: int | None = None) -> FileSink:
    """A sink that owns the output's partial folder. Call `restore` next, with the journal's mark or None.

    `state`: a local folder for outputs that go to a URL; `first_line`: the source's. Raises `Conflict` if the output exists and
    the spec does not overwrite, or if another run owns it; `InvalidInput` for an unknown format.
    """
    partial = partial_of(spec.output, state)
    errors_output = spec.errors or spec.output + ERRORS_SUFFIX
    kind = output_format(spec)
    if not spec.overwrite and not partial.folder.exists():
        _refuse_existing(spec.output, errors_output)
    partial.claim(run_id)
    errors = ErrorLines(Appendable(partial.folder / "errors.jsonl"), first_line)
    return FileSink(partial, rows_file(kind, partial.folder), errors, spec.output, errors_output)


def output_format(spec: RunSpec) -> str:
    kind = spec.output_format or format_of(spec.output)
    if kind not in FORMATS:
        raise InvalidInput(
            f"the format of {spec.output} is unknown",
            hint=f"end its name in .jsonl, .parquet, .csv or .tsv, or set the output format to one of {', '.join(FORMATS)}",
        )
    return kind


def _refuse_existing(*names: str) -> None:
    for name in names:
        if files.exists(name):
            raise Conflict(f"{name} exists", hint="choose another name, remove the file, or replace it with --overwrite")


def rows_file(kind: str, folder: Path) -> RowsFile:
    """The rows of an output of this format, in a local folder."""
    if kind == "parquet":
        import_arrow()
        return ParquetRows(Appendable(folder / "rows.arrow"))
    rows = JsonRows(Appendable(folder / "rows.jsonl"))
    return DelimitedRows(rows, DELIMITERS[kind]) if kind in DELIMITERS else rows
