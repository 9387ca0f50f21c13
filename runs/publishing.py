"""The end of a run: put its files in place, write the manifest beside them, remove everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

import penstock
from penstock.run import Run, RunCounts
from penstock.runs.files import exists, open_read
from penstock.runs.kinds import ClaimedOutput, RunKind
from penstock.runs.manifest import FileReport, Manifest, ManifestPart, manifest_path, read_manifest, write_manifest
from penstock.runs.parts.joining import joined_counts
from penstock.runs.parts.part_files import read_report
from penstock.runs.rows import ResultBatch, RowError, RowSource, Sink
from penstock.runs.run_files import RunFiles

_UNREACHED_ROWS, _UNREACHED_BYTES = 1_000, 1 << 20


def publish(
    kind: RunKind, run: Run, files: RunFiles, *, counts: RunCounts, version: str, now: float, parts: Sequence[ManifestPart] = ()
) -> dict[str, Any]:
    """Publish; returns a report of the files. Safe to repeat after a crash at any point. `now` is by the store's clock."""
    report = files.sink.publish()
    if kind.has_manifest and run.part is None:
        manifest = _manifest_of(run, files, report, counts=counts, version=version, now=now, parts=parts)
        report["manifest"] = write_manifest(manifest, files.folder)
    # Discarded before it is closed: closing releases the lock, and a waiting driver must find nothing to continue.
    files.discard()
    files.close()
    return report


def write_unreached(
    source: RowSource, sink: Sink, after: dict[str, Any] | None, counts: RunCounts, error: RowError, *, written: int
) -> RunCounts:
    """Write every row behind `after` as not reached, with the reason; returns the counts, with the number of all rows.

    `written`: the rows before.
    """
    while (batch := source.read(after, rows=_UNREACHED_ROWS, size_bytes=_UNREACHED_BYTES)) is not None:
        errors = dict.fromkeys(range(len(batch)), error)
        sink.append(ResultBatch(batch.first, [None] * len(batch), batch.carried, errors))
        written, after = written + len(batch), batch.after
    return RunCounts(total=written if counts.total is None else counts.total, done=counts.done, failed=counts.failed)


def published_manifest(kind: RunKind, run: Run) -> Manifest | None:
    """The manifest of this run, if an earlier drive published everything but died before it updated the store."""
    name = manifest_path(run.spec.output)
    if not kind.has_manifest or run.part is not None or not exists(name):
        return None
    with open_read(name) as file:
        manifest = read_manifest(file.read())
    return manifest if manifest.run_id == run.id else None


def published_counts(kind: RunKind, run: Run, output: ClaimedOutput) -> RunCounts | None:
    """The counts of this run or part if another process has published it, else None."""
    if run.part is not None:
        report = read_report(output.folder)
        return joined_counts([report]) if report else None
    manifest = published_manifest(kind, run)
    return manifest.counts if manifest else None


def _manifest_of(
    run: Run,
    files: RunFiles,
    report: dict[str, Any],
    *,
    counts: RunCounts,
    version: str,
    now: float,
    parts: Sequence[ManifestPart],
) -> Manifest:
    return Manifest(
        run_id=run.id,
        model=run.spec.model,
        version=version,
        settings=run.spec,
        input=files.source.identity(),
        counts=counts,
        output=msgspec.convert(report["output"], FileReport),
        errors=msgspec.convert(report["errors"], FileReport | None),
        started_at=run.started_at or run.created_at,
        finished_at=now,
        penstock_version=penstock.__version__,
        parts=list(parts),
    )
