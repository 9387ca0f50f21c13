"""The rows of an ended run that failed, run again: all others come from the output that is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec

from penstock.errors import Conflict, InvalidInput
from penstock.run import Run, RunSpec, RunState
from penstock.runs.files import exists, open_read
from penstock.runs.manifest import manifest_path, read_manifest
from penstock.runs.rows import RowBatch, Source

# Of a run's metadata: whose failed rows it runs again.
RETRY_OF = "penstock:retry-of"
_OUTPUT = "output"
_ERRORS_SUFFIX = ".errors.jsonl"
_PARQUET_ROWS = 1_024


class _OutputLine(msgspec.Struct):
    output: Any = None


class _ErrorLine(msgspec.Struct):
    row: int


_line = msgspec.json.Decoder(_OutputLine)
_error = msgspec.json.Decoder(_ErrorLine)


def retry_source(source: Source, spec: RunSpec) -> Source:
    """`source` for a run that tries failed rows again. Raises `Conflict` where output or input are not the first run's."""
    before, name = spec.metadata[RETRY_OF], manifest_path(spec.output)
    if not exists(name):
        raise Conflict(f"{name} is gone: nobody can tell that {spec.output} is what run {before} wrote")
    with open_read(name) as file:
        manifest = read_manifest(file.read())
    if manifest.run_id != before:
        raise Conflict(f"{spec.output} is the output of run {manifest.run_id} by now, not of {before}")
    if manifest.input != source.identity():
        raise Conflict(f"the input changed since run {before}", hint="start a new run over it: penstock run --overwrite")
    return RetrySource(source, spec)


def retry_spec(run: Run) -> RunSpec:
    """What a run does that repeats the failed rows of an ended one, in the same version. Raises `Conflict`."""
    if run.state is not RunState.COMPLETED:
        raise Conflict(f"run {run.id} is {run.state.value}", hint=f"complete it first: penstock run resume {run.id}")
    if not run.counts.failed:
        raise Conflict(f"no row of run {run.id} failed")
    metadata = run.spec.metadata | {RETRY_OF: run.id}
    return msgspec.structs.replace(run.spec, version=run.version, overwrite=True, max_failed=None, metadata=metadata)


class RetrySource:
    """The same rows as `source`; those that did not fail have their output with them."""

    def __init__(self, source: Source, spec: RunSpec) -> None:
        self.media = source.media
        self._source, self._output = source, spec.output
        self._errors = spec.errors or spec.output + _ERRORS_SUFFIX
        self._failed: frozenset[int] | None = None
        self._outputs: Iterator[Any] = iter(())
        self._row = -1

    def close(self) -> None:
        self._source.close()

    def identity(self) -> dict[str, Any]:
        return self._source.identity()

    def count(self) -> int | None:
        return self._source.count()

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> RowBatch | None:
        batch = self._source.read(after, rows=rows, size_bytes=size_bytes)
        if batch is None:
            return None
        outputs = self._next_outputs(batch.first, len(batch))
        failed = self._failed_rows()
        known = {place: output for place, output in enumerate(outputs) if batch.first + place not in failed}
        inputs = [None if place in known else given for place, given in enumerate(batch.inputs)]
        bad = {place: error for place, error in batch.bad.items() if place not in known}
        return replace(batch, inputs=inputs, bad=bad, known=known)

    def _next_outputs(self, first: int, count: int) -> list[Any]:
        if first != self._row:
            self._outputs = islice(old_outputs(self._output), first, None)
        self._row = first + count
        found = list(islice(self._outputs, count))
        if len(found) < count:
            raise Conflict(f"{self._output} has fewer rows than the input: it is not this run's output any more")
        return found

    def _failed_rows(self) -> frozenset[int]:
        if self._failed is None:
            with open_read(self._errors) as file:
                self._failed = frozenset(_error.decode(line).row for line in file)
        return self._failed


def old_outputs(name: str) -> Iterator[Any]:
    """The output of each row of a finished file, JSON Lines or Parquet; raises `InvalidInput` for anything else."""
    with open_read(name) as file:
        if file.read(4) == b"PAR1":
            yield from _parquet_outputs(file)
            return
        file.seek(0)
        try:
            for line in file:
                yield _line.decode(line).output
        except msgspec.DecodeError as fault:
            raise InvalidInput(f"{name} is not the output of a run: {fault}") from fault


def _parquet_outputs(file: Any) -> Iterator[Any]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(_PARQUET_ROWS, columns=[_OUTPUT]):
        yield from batch.column(0).to_pylist()
