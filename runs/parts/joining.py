"""Joins the rows of completed parts, in their order, as if one driver had written them. Repeated after a crash at any point."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.errors import Conflict
from penstock.run import RunCounts, RunPart
from penstock.runs.manifest import ManifestPart
from penstock.runs.parts.part_files import ERRORS, PartNotHere, PartReport, part_folder, read_report
from penstock.runs.rows import RowSource, Sink
from penstock.runs.sinks.file_sink import FileSink
from penstock.runs.sources.folder import FolderSource
from penstock.runs.sources.row_files import FilesSource

_COPY_BYTES = 1 << 20
# How each line of an errors file begins; `ErrorLines` writes it.
_NUMBERS = re.compile(rb'\{"row":(\d+)(?:,"line":(\d+))?')


def read_reports(folder: Path, parts: int) -> list[PartReport]:
    """The reports of the parts, in order. Raises `PartNotHere` if this host does not have all of them."""
    reports = [read_report(part_folder(folder, number)) for number in range(parts)]
    missing = [number for number, report in enumerate(reports) if report is None]
    if missing:
        raise PartNotHere(f"{part_folder(folder, missing[0])} has no report of a completed part")
    return [report for report in reports if report is not None]


def joined_counts(reports: Sequence[PartReport]) -> RunCounts:
    rows, failed = sum(report.rows for report in reports), sum(report.failed for report in reports)
    return RunCounts(total=rows, done=rows - failed, failed=failed)


def join_parts(sink: Sink, folder: Path, reports: Sequence[PartReport], *, go_on: Callable[[], bool]) -> bool:
    """Fill the sink with the rows of all parts; False if `go_on` returned False in between. Call `publish` next.

    A sink whose publication has begun already has them. Raises `Conflict` if a part's rows differ from its report.
    """
    assert isinstance(sink, FileSink)
    sink.restore(None)
    if sink.is_publishing:
        return True
    before = 0
    for number, report in enumerate(reports):
        if not go_on():
            return False
        part = part_folder(folder, number)
        _append_rows(sink, part / sink.rows.file.path.name, report)
        _append_errors(sink, part / ERRORS, report, before)
        before += report.rows
    failed = sum(report.failed for report in reports)
    lengths = {"output_bytes": sink.rows.file.sync(), "errors_bytes": sink.errors.file.sync()}
    sink.restore({"rows": before, "failed": failed, **lengths})
    return True


def manifest_parts(parts: Sequence[RunPart], reports: Sequence[PartReport], source: RowSource) -> list[ManifestPart]:
    """The manifest's entry of each part."""
    assert isinstance(source, (FolderSource, FilesSource))
    return [
        ManifestPart(
            number=part.number,
            first_file=source.names[part.first],
            last_file=source.names[part.stop - 1],
            begin=part.begin,
            end=part.end,
            rows=report.rows,
            failed=report.failed,
            bytes=report.bytes,
            sha256=report.sha256,
        )
        for part, report in zip(parts, reports, strict=True)
    ]


def _append_rows(sink: FileSink, path: Path, report: PartReport) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_COPY_BYTES):
            digest.update(block)
            sink.rows.file.append(block)
    if digest.hexdigest() != report.sha256:
        raise Conflict(
            f"{path} is not what the part's driver wrote",
            hint=f"find out what else writes there, remove {path.parent.parent}, and start a new run",
        )


def _append_errors(sink: FileSink, path: Path, report: PartReport, rows_before: int) -> None:
    if not report.failed:
        return
    with path.open("rb") as file:
        for line in file:
            sink.errors.file.append(shifted(line, rows_before))


def shifted(line: bytes, rows: int) -> bytes:
    """A line of a part's errors file, renumbered by the number of rows before the part."""
    match = _NUMBERS.match(line)
    if match is None:
        raise Conflict(f"this is not a line of an errors file: {line[:80]!r}")
    numbers = b'{"row":%d' % (int(match[1]) + rows)
    if match[2] is not None:
        numbers += b',"line":%d' % (int(match[2]) + rows)
    return numbers + line[match.end() :]
