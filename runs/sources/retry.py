"""Runs the failed rows of a completed run again; all other rows keep their outputs from its output file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec

from penstock.errors import Conflict, InvalidInput
from penstock.run import RETRY_OF, RunSpec
from penstock.runs.files import exists, open_read
from penstock.runs.manifest import manifest_path, read_manifest
from penstock.runs.rows import RowBatch, RowSource

_OUTPUT = "output"
_ERRORS_SUFFIX = ".errors.jsonl"
_PARQUET_ROWS = 1_024


class _OutputLine(msgspec.Struct):
    output: Any = None


class _ErrorLine(msgspec.Struct):
    row: int


_output_line = msgspec.json.Decoder(_OutputLine)
_error_line = msgspec.json.Decoder(_ErrorLine)


def retry_source(source: RowSource, spec: RunSpec) -> RowSource:
    """`source` for a run that retries failed rows. Raises `Conflict` if output or input are no longer the first run's."""
    before, name = spec.metadata[RETRY_OF], manifest_path(spec.output)
    if not exists(name):
        raise Conflict(f"{name} is gone, and without it {spec.output} cannot be recognized as the output of run {before}")
    with open_read(name) as file:
        manifest = read_manifest(file.read())
    if manifest.run_id != before:
        raise Conflict(f"{spec.output} is now the output of run {manifest.run_id}, not of {before}")
    if manifest.input != source.identity():
        raise Conflict(f"the input has changed since run {before}", hint="start a new run over it, with --overwrite")
    return RetrySource(source, spec)


class RetrySource:
    """The same rows as `source`; those that did not fail carry their known output."""

    def __init__(self, source: RowSource, spec: RunSpec) -> None:
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

    def share_before(self, after: dict[str, Any] | None) -> float | None:
        return self._source.share_before(after)

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
        outputs = list(islice(self._outputs, count))
        if len(outputs) < count:
            raise Conflict(f"{self._output} has fewer rows than the input, so it is not this run's output any more")
        return outputs

    def _failed_rows(self) -> frozenset[int]:
        if self._failed is None:
            with open_read(self._errors) as file:
                try:
                    self._failed = frozenset(_error_line.decode(line).row for line in file)
                except (msgspec.DecodeError, UnicodeDecodeError) as fault:
                    raise InvalidInput(f"{self._errors} is not the errors file of a run: {fault}") from fault
        return self._failed


def old_outputs(name: str) -> Iterator[Any]:
    """The output of each row of a finished file, JSON Lines or Parquet; raises `InvalidInput` for any other file."""
    with open_read(name) as file:
        if file.read(4) == b"PAR1":
            yield from _parquet_outputs(file)
            return
        file.seek(0)
        try:
            for line in file:
                yield _output_line.decode(line).output
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            raise InvalidInput(f"{name} is not the output of a run: {fault}") from fault


def _parquet_outputs(file: Any) -> Iterator[Any]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(_PARQUET_ROWS, columns=[_OUTPUT]):
        yield from batch.column(0).to_pylist()
